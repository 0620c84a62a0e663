"""Forward and backward halves: what is saved, how it is found again, and halves with nothing in between."""

from typing import Any

import torch
from torch import nn
from torch._functorch._aot_autograd import descriptors as d
from torch.utils.checkpoint import checkpoint

from tests.capture import compiled, joint, min_cut_rematerialization_partition, partition, symbolic
from tests.cases.case import (
    BACKWARD,
    FORWARD,
    INFERENCE,
    NO_VC_CHECK,
    PRESENT,
    A,
    Case,
    Out,
    P,
    R,
    Table,
    arg,
    carried,
    grad,
    out,
    param,
    save,
    tangent,
)
from tests.cases.models import Fn, X


class _Stash(torch.autograd.Function):
    """Keeps its result on ``ctx``, where autograd checks no version, and saves its argument."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        ctx.stashed = y
        ctx.save_for_backward(x)
        return y * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * ctx.stashed * x  # type: ignore[no-any-return]  # ctx is untyped


class _StashLinear(nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        return _Stash.apply(super().forward(x))  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _multiply_and_sine(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (x * w).sin()


def _waves(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (x * w).sin().cos()


def _add(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x + w


def _sine_and_cosine(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = (x * w).sin()
    return y, y.cos()


def _sizes(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return (x * w).reshape(-1).cumsum(0), x.shape[0]


def _outputs_of_all_kinds(w: torch.Tensor, x: torch.Tensor) -> tuple[object, ...]:
    return x, w, x * w, None, 7


def _checkpointed(w: torch.Tensor, x: torch.Tensor) -> Any:
    return checkpoint(_waves, w, x, use_reentrant=False)


NO_CHECK = NO_VC_CHECK or d.SavedForBackwardsAOTOutput

CASES = [
    Case(
        "default partition",
        "What backward reads is saved: the factor that the parameter's gradient needs, and the sine's argument.",
        lambda: partition(joint(Fn(_multiply_and_sine), X)),
        [
            Table(
                FORWARD,
                [param("w"), arg(0)],
                [out(0), save(0, same_node_as=A(0)), save(1)],
                saved=["primals_2", "mul"],
            ),
            Table(
                BACKWARD,
                [arg(0), carried("mul"), tangent(R(0), linked=False)],
                [grad(P("w"), linked=False)],
                saved=["primals_2", "mul"],
            ),
        ],
    ),
    Case(
        "min-cut partition",
        "Min-cut saves the two inputs, and computes the rest again: backward takes in no activation.",
        lambda: partition(joint(Fn(_waves), X), min_cut_rematerialization_partition),
        [
            Table(
                FORWARD,
                [param("w"), arg(0)],
                [out(0), save(0, same_node_as=P("w")), save(1, same_node_as=A(0))],
                saved=["primals_1", "primals_2"],
            ),
            Table(
                BACKWARD,
                [param("w", grad=PRESENT), arg(0), tangent(R(0), linked=False)],
                [grad(P("w"))],
                saved=["primals_1", "primals_2"],
            ),
        ],
    ),
    Case(
        "checkpointed",
        "A checkpointed part is computed again in backward: min-cut carries its inputs.",
        lambda: partition(joint(Fn(_checkpointed), X), min_cut_rematerialization_partition),
        [
            Table(
                FORWARD,
                [param("w"), arg(0)],
                [out(0), save(0, same_node_as=P("w")), save(1, same_node_as=A(0))],
                saved=["primals_1", "primals_2"],
            ),
            Table(
                BACKWARD,
                [param("w", grad=PRESENT), arg(0), tangent(R(0), linked=False)],
                [grad(P("w"))],
                saved=["primals_1", "primals_2"],
            ),
        ],
    ),
    Case(
        "output saved",
        "The gradient of a cosine needs its argument, which is a result as well: one node, saved and returned.",
        lambda: partition(joint(Fn(_sine_and_cosine), X)),
        [
            Table(
                FORWARD,
                [param("w"), arg(0)],
                [out(0), out(1), save(0, same_node_as=A(0)), save(1), save(2, same_node_as=R(0))],
                saved=["primals_2", "mul", "sin"],
            ),
            Table(
                BACKWARD,
                [
                    arg(0),
                    carried("mul"),
                    carried("sin"),
                    tangent(R(0), linked=False),
                    tangent(R(1), linked=False),
                ],
                [grad(P("w"), linked=False)],
                saved=["primals_2", "mul", "sin"],
            ),
        ],
    ),
    Case(
        "without version check",
        "A tensor kept on ctx is saved in a class of its own, after the others; torch has it from 2.13 on.",
        lambda: compiled(_StashLinear(3, 3), X).halves,
        [
            Table(
                FORWARD,
                [arg(0), arg(1), arg(2)],
                [out(0), save(0, same_node_as=A(2)), save(1), Out(NO_CHECK(2))],  # type: ignore[call-arg]  # all have idx
                saved=["primals_3", "addmm", "sin"],
            ),
            Table(
                BACKWARD,
                [arg(2), carried("addmm"), carried("sin"), tangent(R(0), linked=False)],
                [grad(A(0), linked=False), grad(A(1), linked=False)],
                saved=["primals_3", "addmm", "sin"],
            ),
        ],
    ),
    Case(
        "nothing saved",
        "A sum's gradients need nothing of forward: that half looks like an inference graph, and is called one.",
        lambda: partition(joint(Fn(_add), torch.randn(3))),
        [
            Table(INFERENCE, [param("w"), arg(0)], [out(0)], saved=[]),
            Table(
                BACKWARD,
                [tangent(R(0), linked=False)],
                [grad(P("w"), linked=False, same_node_as=d.TangentAOTInput(R(0)))],
                saved=[],
            ),
        ],
    ),
    Case(
        "sizes saved",
        "Symbolic sizes that backward needs are saved after the tensors, and taken in before them.",
        lambda: partition(joint(Fn(_sizes, torch.randn(())), *symbolic(torch.randn(4, 6)))),
        [
            Table(
                FORWARD,
                [param("w"), arg(0)],
                [out(0), out(1), save(0, same_node_as=A(0)), save(1, same_node_as=R(1)), save(2)],
                saved=["primals_2", "sym_size_int", "sym_size_int_1"],
            ),
            Table(
                BACKWARD,
                [carried("sym_size_int"), carried("sym_size_int_1"), arg(0), tangent(R(0), linked=False)],
                [grad(P("w"), linked=False)],
                saved=["primals_2", "sym_size_int", "sym_size_int_1"],
            ),
        ],
    ),
    Case(
        "sizes saved, compiled",
        "Under torch.compile the symbolic sizes are arguments, and carried as such.",
        lambda: compiled(nn.Linear(3, 2), torch.randn(5, 3), dynamic=True).halves,
        [
            Table(
                FORWARD,
                [arg(0), arg(1), arg(2, used=True), arg(3)],
                [out(0), save(0, same_node_as=A(3)), save(1, same_node_as=A(2))],
                saved=["primals_4", "primals_3"],
            ),
            Table(
                BACKWARD,
                [arg(2, used=False), arg(3), tangent(R(0), linked=False)],
                [grad(A(0), linked=False), grad(A(1), linked=False)],
                saved=["primals_4", "primals_3"],
            ),
        ],
    ),
    Case(
        "outputs of all kinds",
        "A forward half whose outputs are placeholders, None and a number.",
        lambda: partition(joint(Fn(_outputs_of_all_kinds), X)),
        [
            Table(
                FORWARD,
                [param("w"), arg(0)],
                [
                    out(0, same_node_as=A(0)),
                    out(1, same_node_as=P("w")),
                    out(2),
                    out(3, value=None),
                    out(4, value=7),
                    save(0, same_node_as=A(0)),
                ],
                saved=["primals_2"],
            ),
            Table(
                BACKWARD,
                [arg(0), tangent(R(2), linked=False)],
                [grad(P("w"), linked=False)],
                saved=["primals_2"],
            ),
        ],
    ),
]
