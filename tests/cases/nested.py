"""Sizes and strides of subclasses as leaves: jagged nested tensors, and `TwoTensor` under dynamic shapes."""

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tests.capture import compiled, joint, partition, symbolic
from tests.cases.case import (
    BACKWARD,
    FORWARD,
    INFERENCE,
    JOINT,
    PRESENT,
    A,
    Case,
    P,
    R,
    Table,
    arg,
    grad,
    mutation,
    out,
    param,
    save,
    tangent,
)
from tests.cases.models import Fn, twice, two

JAGGED = "_values _offsets _min_seqlen_tensor _max_seqlen_tensor"
SIZED = "a b size(0) size(1) stride(0)"


def _jagged() -> torch.Tensor:
    parts = [torch.randn(rows, 3) for rows in (2, 4, 1)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)


def _fake_jagged() -> torch.Tensor:
    return FakeTensorMode(shape_env=ShapeEnv()).from_tensor(_jagged())


def _scale(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x * w


def _scale_and_transpose(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (x * w).t()


def _double(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def _values(x: torch.Tensor) -> torch.Tensor:
    return x.sin().values()


def _mutate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * y


CASES = [
    Case(
        "jagged",
        "A jagged nested tensor and a plain layer: four leaves and the sizes; the parameters' gradients are plain.",
        lambda: joint(nn.Linear(3, 2), _fake_jagged()),
        Table(
            JOINT,
            [
                param("weight", grad=PRESENT),
                param("bias", grad=PRESENT),
                arg(0, f"{JAGGED} size(0) size(2) stride(1)", grad=PRESENT),
                tangent(R(0), JAGGED),
            ],
            [
                out(0, f"{JAGGED} size(0)", tangent=True),
                grad(P("weight")),
                grad(P("bias")),
                grad(A(0), JAGGED),
            ],
        ),
    ),
    Case(
        "jagged, compiled",
        "A jagged nested tensor under torch.compile: the ragged size is an argument of its own.",
        lambda: compiled(nn.Linear(3, 2), _jagged()).joint,
        Table(
            JOINT,
            [
                arg(0, grad=PRESENT),
                arg(1, grad=PRESENT),
                arg(2, used=False),
                arg(3, JAGGED, grad=PRESENT),
                tangent(R(0), JAGGED),
            ],
            [out(0, JAGGED, tangent=True), grad(A(0)), grad(A(1)), grad(A(3), JAGGED)],
        ),
    ),
    Case(
        "jagged to plain",
        "A jagged input and its values as output: a plain output and tangent, a jagged gradient.",
        lambda: compiled(_values, _jagged()).joint,
        Table(
            JOINT,
            [arg(0, used=False), arg(1, JAGGED, grad=PRESENT), tangent(R(0))],
            [out(0, tangent=True), grad(A(1), JAGGED)],
        ),
    ),
    Case(
        "symbolic sizes",
        "A subclass of symbolic sizes: input, output and gradient have sizes and a stride, the tangent none.",
        lambda: joint(Fn(_scale, torch.tensor(2.0)), *symbolic(two(4, 6, requires_grad=True))),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0, SIZED, grad=PRESENT), tangent(R(0), "a b")],
            [out(0, SIZED, tangent=True), grad(P("w"), "a b"), grad(A(0), SIZED)],
        ),
    ),
    Case(
        "symbolic sizes, transposed",
        "A transposed result: its stride is the second one, and the gradient's too.",
        lambda: joint(Fn(_scale_and_transpose, torch.tensor(2.0)), *symbolic(two(4, 6, requires_grad=True))),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0, SIZED, grad=PRESENT), tangent(R(0), "a b")],
            [
                out(0, "a b size(0) size(1) stride(1)", tangent=True),
                grad(P("w"), "a b"),
                grad(A(0), "a b size(0) size(1) stride(1)"),
            ],
        ),
    ),
    Case(
        "symbolic sizes, partitioned",
        "Halves of symbolic sizes: backward takes in the sizes that the input's gradient has, as parts of the input.",
        lambda: partition(joint(Fn(_scale, torch.tensor(2.0)), *symbolic(two(4, 6, requires_grad=True)))),
        [
            Table(FORWARD, [param("w"), arg(0, SIZED)], [out(0, SIZED), *map(save, range(5))]),
            Table(
                BACKWARD,
                [
                    arg(0, "size(0) stride(0) a b", grad=PRESENT),
                    param("w", grad=PRESENT),
                    tangent(R(0), "a b", linked=False),
                ],
                [grad(P("w"), "a b"), grad(A(0), SIZED)],
            ),
        ],
    ),
    Case(
        "dynamic shapes",
        "A subclass under torch.compile with dynamic shapes: sizes are arguments, and leaves as well.",
        lambda: compiled(_double, two(4, 6, requires_grad=True), dynamic=True).joint,
        Table(
            JOINT,
            [arg(0, used=False), arg(1, used=False), arg(2, SIZED, grad=PRESENT), tangent(R(0), "a b")],
            [out(0, SIZED, tangent=True), grad(A(2), SIZED)],
        ),
    ),
    Case(
        "dynamic shapes, partitioned",
        "The gradient of a sine needs its argument, and the gradient's sizes are carried.",
        lambda: compiled(_double, two(4, 6, requires_grad=True), dynamic=True).halves,
        [
            Table(
                FORWARD,
                [arg(0, used=False), arg(1, used=False), arg(2, SIZED)],
                [out(0, SIZED), *map(save, range(4))],
                saved=["primals_3", "primals_4", "primals_5", "primals_7"],
            ),
            Table(
                BACKWARD,
                [arg(2, "size(0) stride(0) a b", grad=PRESENT), tangent(R(0), "a b", linked=False)],
                [grad(A(2), SIZED)],
                saved=["primals_3", "primals_4", "primals_5", "primals_7"],
            ),
        ],
    ),
    Case(
        "dynamic shapes, nested",
        "A subclass of subclasses: the output has sizes and strides at every level, the input at the outer one.",
        lambda: compiled(_double, twice(two(4, 6), two(4, 6)).requires_grad_(), dynamic=True).joint,
        Table(
            JOINT,
            [
                arg(0, used=False),
                arg(1, used=False),
                arg(2, "a.a a.b b.a b.b size(0) size(1) stride(0)", grad=PRESENT),
                tangent(R(0), "a.a a.b b.a b.b"),
            ],
            [
                out(
                    0,
                    "a.a a.b a.size(0) a.size(1) a.stride(0) b.a b.b b.size(0) b.size(1) b.stride(0)"
                    " size(0) size(1) stride(0)",
                    tangent=True,
                ),
                grad(
                    A(2),
                    "a.a a.b a.size(0) a.size(1) a.stride(0) b.a b.b b.size(0) b.size(1) b.stride(0)"
                    " size(0) size(1) stride(0)",
                ),
            ],
        ),
    ),
    Case(
        "dynamic shapes, mutated",
        "A mutated subclass input: its new value has sizes and a stride, too.",
        lambda: compiled(_mutate, two(4, 6), two(4, 6, requires_grad=True), dynamic=True, keep_mutations=False).joint,
        Table(
            JOINT,
            [
                arg(0, used=False),
                arg(1, used=False),
                arg(2, SIZED, mutated=True),
                arg(3, SIZED, grad=PRESENT),
                tangent(R(0), "a b"),
            ],
            [mutation(A(2), SIZED), out(0, SIZED, tangent=True), grad(A(3), SIZED)],
        ),
    ),
    Case(
        "dynamic shapes, inference",
        "A subclass of dynamic shapes in an inference graph.",
        lambda: compiled(_double, two(4, 6), dynamic=True).inference,
        Table(INFERENCE, [arg(0, used=False), arg(1, used=False), arg(2, SIZED)], [out(0, SIZED)]),
    ),
]
