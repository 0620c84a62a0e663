"""Inputs, buffers and parameters that the program writes to."""

import torch
from torch import nn

from tests.capture import joint, min_cut_rematerialization_partition, partition
from tests.cases.case import (
    BACKWARD,
    FORWARD,
    INFERENCE,
    JOINT,
    PRESENT,
    A,
    B,
    Captured,
    Case,
    M,
    P,
    R,
    Table,
    arg,
    buffer,
    carried,
    grad,
    mutation,
    out,
    param,
    save,
    tangent,
)
from tests.cases.models import Fn, WithBuffer, X, wants_grad


def _add(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * w


def _multiply(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    x.mul_(w)
    return x.sum()


def _multiply_and_return(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    x.mul_(w)
    return x


def _double_unseen(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x.mul_(2)
    return (x * w).sum()


def _double_detached(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    x.detach().mul_(2)
    return x * w


def _double_param(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        w.mul_(2)
    return x * w


def _transpose(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    x.t_()
    return x * w


def _use_buffer(w: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x * w + b


def _add_param_to_buffer(w: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    b.add_(w)
    return x * b


def _count_and_use(w: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    b.add_(1)
    return x.sum() * (w * b)


def _param_inference() -> Captured:
    with torch.no_grad():
        return joint(Fn(_double_param), X)


def _batch_norm() -> nn.Module:
    return nn.BatchNorm1d(3)


STATISTICS = ["running_mean", "running_var", "num_batches_tracked"]

CASES = [
    Case(
        "input",
        "A mutated input that wants no gradient, by a value that wants none: its new value has no tangent.",
        lambda: joint(Fn(_add), torch.randn(2, 3)),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0, mutated=True), tangent(R(0))],
            [mutation(A(0)), out(0, tangent=True), grad(P("w"))],
        ),
    ),
    Case(
        "input, new value with gradient",
        "An input that wants no gradient takes in a parameter: its new value has a tangent, itself no gradient.",
        lambda: joint(Fn(_multiply), torch.randn(2, 3)),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0, mutated=True), tangent(M(A(0))), tangent(R(0))],
            [mutation(A(0), tangent=True), out(0, tangent=True), grad(P("w"))],
        ),
    ),
    Case(
        "input with gradient",
        "A mutated input that wants a gradient: it has a new value, that a tangent, and itself a gradient.",
        lambda: joint(Fn(_multiply), wants_grad(2, 3).clone()),
        Table(
            JOINT,
            [
                param("w", grad=PRESENT),
                arg(0, grad=PRESENT, mutated=True),
                tangent(M(A(0))),
                tangent(R(0)),
            ],
            [mutation(A(0), tangent=True), out(0, tangent=True), grad(P("w")), grad(A(0))],
        ),
    ),
    Case(
        "input returned",
        "The mutated input is the result, too: one node is its new value and the result, which needs no tangent.",
        lambda: joint(Fn(_multiply_and_return), wants_grad(2, 3).clone()),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0, grad=PRESENT, mutated=True), tangent(M(A(0)))],
            [mutation(A(0), tangent=True), out(0, same_node_as=M(A(0))), grad(P("w")), grad(A(0))],
        ),
    ),
    Case(
        "input without autograd",
        "An input that wants a gradient, mutated under no_grad.",
        lambda: joint(Fn(_double_unseen), wants_grad(2, 3)),
        Table(
            JOINT,
            [
                param("w", grad=PRESENT),
                arg(0, grad=PRESENT, mutated=True),
                tangent(M(A(0))),
                tangent(R(0)),
            ],
            [mutation(A(0), tangent=True), out(0, tangent=True), grad(P("w")), grad(A(0))],
        ),
    ),
    Case(
        "input through its detached alias",
        "An input that wants a gradient, mutated by way of ``detach()``.",
        lambda: joint(Fn(_double_detached), wants_grad(2, 3)),
        Table(
            JOINT,
            [
                param("w", grad=PRESENT),
                arg(0, grad=PRESENT, mutated=True),
                tangent(M(A(0))),
                tangent(R(0)),
            ],
            [mutation(A(0), tangent=True), out(0, tangent=True), grad(P("w")), grad(A(0))],
        ),
    ),
    Case(
        "sizes alone",
        "An input that aliases nothing is transposed in place: an ordinary mutation, whatever was changed.",
        lambda: joint(Fn(_transpose, torch.randn(2)), torch.randn(2, 3)),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0, mutated=True), tangent(R(0))],
            [mutation(A(0)), out(0, tangent=True), grad(P("w"))],
        ),
    ),
    Case(
        "parameter",
        "A parameter mutated under no_grad: new value, tangent of that, and a gradient.",
        lambda: joint(Fn(_double_param), X),
        Table(
            JOINT,
            [
                param("w", grad=PRESENT, mutated=True),
                arg(0),
                tangent(M(P("w"))),
                tangent(R(0)),
            ],
            [mutation(P("w"), tangent=True), out(0, tangent=True), grad(P("w"))],
        ),
    ),
    Case(
        "parameter, inference",
        "A mutated parameter in an inference graph.",
        _param_inference,
        Table(INFERENCE, [param("w", mutated=True), arg(0)], [mutation(P("w")), out(0)]),
    ),
    Case(
        "buffer that wants a gradient",
        "A buffer with requires_grad has a gradient like a parameter.",
        lambda: joint(WithBuffer(_use_buffer, wants_grad(3)), X),
        Table(
            JOINT,
            [param("w", grad=PRESENT), buffer("b", grad=PRESENT), arg(0), tangent(R(0))],
            [out(0, tangent=True), grad(P("w")), grad(B("b"))],
        ),
    ),
    Case(
        "buffer, new value with gradient",
        "A buffer that takes in a parameter: its new value has a tangent.",
        lambda: joint(WithBuffer(_add_param_to_buffer), X),
        Table(
            JOINT,
            [param("w", grad=PRESENT), buffer("b", mutated=True), arg(0), tangent(M(B("b"))), tangent(R(0))],
            [mutation(B("b"), tangent=True), out(0, tangent=True), grad(P("w"))],
        ),
    ),
    Case(
        "batch norm",
        "Running statistics: three mutated buffers, before the result.",
        lambda: joint(_batch_norm(), torch.randn(5, 3)),
        Table(
            JOINT,
            [
                param("weight", grad=PRESENT),
                param("bias", grad=PRESENT),
                *(buffer(name, mutated=True) for name in STATISTICS),
                arg(0),
                tangent(R(0)),
            ],
            [
                *(mutation(B(name)) for name in STATISTICS),
                out(0, tangent=True),
                grad(P("weight")),
                grad(P("bias")),
            ],
        ),
    ),
    *(
        Case(
            f"buffer saved, {name} partition",
            "A mutated buffer's new value is needed in backward: one node goes out as new value and is saved.",
            lambda how=how: partition(joint(WithBuffer(_count_and_use), X), *how),  # type: ignore[misc]  # can't infer it
            [
                Table(
                    FORWARD,
                    [param("w"), buffer("b", mutated=True), arg(0)],
                    [mutation(B("b")), out(0), save(0, same_node_as=M(B("b"))), save(1)],
                    saved=["add", "sum_1"],
                ),
                Table(
                    BACKWARD,
                    [carried("add"), carried("sum_1"), tangent(R(0), linked=False)],
                    [grad(P("w"), linked=False)],
                    saved=["add", "sum_1"],
                ),
            ],
        )
        for name, how in {"default": (), "min-cut": (min_cut_rematerialization_partition,)}.items()
    ),
]
