"""Effect tokens, which go in and out of a graph to keep side effects in order."""

from functools import cache
from typing import Any

import torch
from torch import nn
from torch._functorch._aot_autograd import descriptors as d
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from tests.capture import compiled, joint, partition
from tests.cases.case import (
    BACKWARD,
    FORWARD,
    INFERENCE,
    JOINT,
    PRESENT,
    A,
    Captured,
    Case,
    In,
    Out,
    P,
    R,
    Table,
    arg,
    grad,
    out,
    param,
    save,
    tangent,
)


@cache
def _define_operators() -> None:
    """Two operators with an ordered side effect: the gradient of ``note_both_ways`` calls ``note``."""

    @torch.library.custom_op("jointgraph_tests::note", mutates_args=())
    def note(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @torch.library.custom_op("jointgraph_tests::note_both_ways", mutates_args=())
    def note_both_ways(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    note_both_ways.register_autograd(lambda _, gradient: torch.ops.jointgraph_tests.note.default(gradient * 2))
    for operator in (note, note_both_ways):
        operator.register_fake(torch.empty_like)
        _register_effectful_op(operator, _EffectType.ORDERED)


class _NoteGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return torch.ops.jointgraph_tests.note.default(*gradients)


class _InForward(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        torch.ops.jointgraph_tests.note.default(y.detach())
        return y


class _InBackward(nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        return _NoteGradient.apply(super().forward(x))  # type: ignore[no-untyped-call]  # torch leaves it untyped


class _InBoth(nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.ops.jointgraph_tests.note_both_ways.default(super().forward(x))


class _Print(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.ops.aten._print("hello")
        return super().forward(x)


def _batch() -> torch.Tensor:
    _define_operators()
    return torch.randn(4, 3)


def _inference() -> Captured:
    with torch.no_grad():
        return joint(_InForward(3, 2), _batch())


TOKEN_IN, TOKEN_OUT = In(d.ForwardTokenAOTInput(0)), Out(d.ForwardTokenAOTOutput(0))
BACKWARD_TOKEN_IN, BACKWARD_TOKEN_OUT = In(d.BackwardTokenAOTInput(0)), Out(d.BackwardTokenAOTOutput(0))
PARAMS = [param("weight", grad=PRESENT), param("bias", grad=PRESENT)]
GRADS = [grad(P("weight")), grad(P("bias"))]

CASES = [
    Case(
        "in forward",
        "A side effect in forward: its token comes before the parameters, and goes out before the result.",
        lambda: joint(_InForward(3, 2), _batch()),
        Table(JOINT, [TOKEN_IN, *PARAMS, arg(0), tangent(R(0))], [TOKEN_OUT, out(0, tangent=True), *GRADS]),
    ),
    Case(
        "in backward",
        "A side effect in backward alone: the token comes after the tangents, and goes out after the gradients.",
        lambda: joint(_InBackward(3, 2), _batch()),
        Table(
            JOINT,
            [*PARAMS, arg(0), tangent(R(0)), BACKWARD_TOKEN_IN],
            [out(0, tangent=True), *GRADS, BACKWARD_TOKEN_OUT],
        ),
    ),
    Case(
        "in both",
        "Side effects in forward and backward: a token each.",
        lambda: joint(_InBoth(3, 2), _batch()),
        Table(
            JOINT,
            [TOKEN_IN, *PARAMS, arg(0), tangent(R(0)), BACKWARD_TOKEN_IN],
            [TOKEN_OUT, out(0, tangent=True), *GRADS, BACKWARD_TOKEN_OUT],
        ),
    ),
    Case(
        "print",
        "Torch's own printing operator needs a token, too.",
        lambda: joint(_Print(3, 2), _batch()),
        Table(JOINT, [TOKEN_IN, *PARAMS, arg(0), tangent(R(0))], [TOKEN_OUT, out(0, tangent=True), *GRADS]),
    ),
    Case(
        "inference",
        "A token in an inference graph.",
        _inference,
        Table(INFERENCE, [TOKEN_IN, param("weight"), param("bias"), arg(0)], [TOKEN_OUT, out(0)]),
    ),
    Case(
        "partitioned",
        "Each half keeps its own token, and carries none: the weight's gradient needs the input alone.",
        lambda: partition(joint(_InBoth(3, 2), _batch())),
        [
            Table(
                FORWARD,
                [TOKEN_IN, param("weight"), param("bias"), arg(0)],
                [TOKEN_OUT, out(0), save(0, same_node_as=A(0))],
                saved=["primals_4"],
            ),
            Table(
                BACKWARD,
                [arg(0), tangent(R(0), linked=False), BACKWARD_TOKEN_IN],
                [grad(P("weight"), linked=False), grad(P("bias"), linked=False), BACKWARD_TOKEN_OUT],
                saved=["primals_4"],
            ),
        ],
    ),
    Case(
        "compiled",
        "The same side effects under torch.compile.",
        lambda: compiled(_InBoth(3, 2), _batch()).joint,
        Table(
            JOINT,
            [
                TOKEN_IN,
                arg(0, grad=PRESENT),
                arg(1, grad=PRESENT),
                arg(2),
                tangent(R(0)),
                BACKWARD_TOKEN_IN,
            ],
            [TOKEN_OUT, out(0, tangent=True), grad(A(0)), grad(A(1)), BACKWARD_TOKEN_OUT],
        ),
    ),
]
