"""`TwoTensor`, a wrapper subclass of two tensors: every place where a subclass can stand, static shapes."""

import torch

from tests.capture import joint, partition
from tests.cases.case import (
    BACKWARD,
    FORWARD,
    INFERENCE,
    JOINT,
    MISSING,
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
    grad,
    mutation,
    no_grad,
    out,
    param,
    save,
    tangent,
)
from tests.cases.models import Fn, WithBuffer, X, multiply, twice, two


def _inference() -> Captured:
    with torch.no_grad():
        return joint(Fn(multiply, two(3)), X)


def _pass_through(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x, x.sum() * w


def _pass_through_other(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x, y * w


def _return_param(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return w, x * w


def _add_in_place(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * w


def _multiply_in_place(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    x.mul_(w)
    return x.sum()


def _count(w: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    b.add_(1)
    return x * w * b


def _build(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return twice(x * w, x + w)


def _ignore_first(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y * w


CASES = [
    Case(
        "parameter",
        "A subclass parameter: one input of two leaves, found by its name, with a gradient of two.",
        lambda: joint(Fn(multiply, two(3)), X),
        Table(
            JOINT,
            [param("w", "a b", grad=PRESENT), arg(0), tangent(R(0), "a b")],
            [out(0, "a b", tangent=True), grad(P("w"), "a b")],
        ),
    ),
    Case(
        "input only",
        "A subclass input that wants a gradient, and plain parameters: their gradients are subclasses all the same.",
        lambda: joint(torch.nn.Linear(3, 2), two(4, 3, requires_grad=True)),
        Table(
            JOINT,
            [
                param("weight", grad=PRESENT),
                param("bias", grad=PRESENT),
                arg(0, "a b", grad=PRESENT),
                tangent(R(0), "a b"),
            ],
            [out(0, "a b", tangent=True), grad(P("weight"), "a b"), grad(P("bias"), "a b"), grad(A(0), "a b")],
        ),
    ),
    Case(
        "plain parameter",
        "A plain parameter times a subclass input: one node, and a gradient of two leaves.",
        lambda: joint(Fn(multiply), two(2, 3)),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0, "a b"), tangent(R(0), "a b")],
            [out(0, "a b", tangent=True), grad(P("w"), "a b")],
        ),
    ),
    Case(
        "passed through",
        "A subclass input that is an output: it has no tangent, as an output that is an input needs none.",
        lambda: joint(Fn(_pass_through), two(2, 3, requires_grad=True)),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0, "a b", grad=PRESENT), tangent(R(1), "a b")],
            [out(0, "a b"), out(1, "a b", tangent=True), grad(P("w"), "a b"), grad(A(0), "a b")],
        ),
    ),
    Case(
        "passed through beside plain",
        "A subclass that is passed through, in a graph whose gradients are plain.",
        lambda: joint(Fn(_pass_through_other), two(2, 3), torch.randn(3)),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0, "a b"), arg(1), tangent(R(1))],
            [out(0, "a b"), out(1, tangent=True), grad(P("w"))],
        ),
    ),
    Case(
        "parameter returned",
        "A subclass parameter that is also an output: its nodes fill input and output slots.",
        lambda: joint(Fn(_return_param, two(3)), X),
        Table(
            JOINT,
            [param("w", "a b", grad=PRESENT), arg(0), tangent(R(1), "a b")],
            [out(0, "a b"), out(1, "a b", tangent=True), grad(P("w"), "a b")],
        ),
    ),
    Case(
        "nested",
        "A subclass of subclasses: four leaves, by paths of two steps.",
        lambda: joint(Fn(multiply), twice(two(2, 3), two(2, 3)).requires_grad_()),
        Table(
            JOINT,
            [
                param("w", grad=PRESENT),
                arg(0, "a.a a.b b.a b.b", grad=PRESENT),
                tangent(R(0), "a.a a.b b.a b.b"),
            ],
            [
                out(0, "a.a a.b b.a b.b", tangent=True),
                grad(P("w"), "a.a a.b b.a b.b"),
                grad(A(0), "a.a a.b b.a b.b"),
            ],
        ),
    ),
    Case(
        "nested on one side",
        "A subclass of a plain tensor and a subclass: paths of one step and of two.",
        lambda: joint(Fn(multiply), twice(X, two(2, 3)).requires_grad_()),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0, "a b.a b.b", grad=PRESENT), tangent(R(0), "a b.a b.b")],
            [out(0, "a b.a b.b", tangent=True), grad(P("w"), "a b.a b.b"), grad(A(0), "a b.a b.b")],
        ),
    ),
    Case(
        "mutated",
        "A mutated subclass input that wants no gradient: a new value of two leaves, without a tangent.",
        lambda: joint(Fn(_add_in_place), two(2, 3)),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0, "a b", mutated=True), tangent(R(0), "a b")],
            [mutation(A(0), "a b"), out(0, "a b", tangent=True), grad(P("w"), "a b")],
        ),
    ),
    Case(
        "mutated with gradient",
        "A mutated subclass input whose new value has a gradient: two leaves, and torch gives it one plain tangent.",
        lambda: joint(Fn(_multiply_in_place), two(2, 3, requires_grad=True).clone()),
        Table(
            JOINT,
            [
                param("w", grad=PRESENT),
                arg(0, "a b", grad=PRESENT, mutated=True),
                tangent(M(A(0))),
                tangent(R(0), "a b"),
            ],
            [
                mutation(A(0), "a b", tangent=True),
                out(0, "a b", tangent=True),
                grad(P("w"), "a b"),
                grad(A(0), "a b"),
            ],
        ),
    ),
    Case(
        "mutated buffer",
        "A mutated subclass buffer and a subclass parameter.",
        lambda: joint(WithBuffer(_count, two(3)), X),
        Table(
            JOINT,
            [
                param("w", grad=PRESENT),
                buffer("b", "a b", mutated=True),
                arg(0),
                tangent(R(0), "a b"),
            ],
            [mutation(B("b"), "a b"), out(0, "a b", tangent=True), grad(P("w"), "a b")],
        ),
    ),
    Case(
        "made inside",
        "The model makes the subclass: plain inputs, output and tangent of two leaves; no gradient comes through.",
        lambda: joint(Fn(_build), X),
        Table(
            JOINT,
            [param("w", grad=MISSING), arg(0), tangent(R(0), "a b", used=False)],
            [out(0, "a b", tangent=True), no_grad(P("w"))],
        ),
    ),
    Case(
        "gradient missing",
        "An unused subclass input that wants a gradient: one None slot, without leaves.",
        lambda: joint(Fn(_ignore_first, two(3)), two(2, 3, requires_grad=True), torch.randn(3)),
        Table(
            JOINT,
            [
                param("w", "a b", grad=PRESENT),
                arg(0, "a b", grad=MISSING, used=False),
                arg(1),
                tangent(R(0), "a b"),
            ],
            [out(0, "a b", tangent=True), grad(P("w"), "a b"), no_grad(A(0))],
        ),
    ),
    Case(
        "tied",
        "One subclass parameter as an argument, too: both inputs are on the same two storages.",
        lambda: joint(*_tied()),
        Table(
            JOINT,
            [
                param("w", "a b", grad=PRESENT, aliases=[A(0)]),
                arg(0, "a b", grad=PRESENT, aliases=[P("w")]),
                tangent(R(0), "a b"),
            ],
            [out(0, "a b", tangent=True), grad(P("w"), "a b"), grad(A(0), "a b")],
        ),
    ),
    Case(
        "inference",
        "A subclass parameter in an inference graph.",
        _inference,
        Table(INFERENCE, [param("w", "a b"), arg(0)], [out(0, "a b")]),
    ),
    Case(
        "partitioned",
        "Halves of a product of subclasses: each factor's gradient needs the other, so all four leaves are carried.",
        lambda: partition(joint(Fn(multiply, two(3)), two(2, 3, requires_grad=True))),
        [
            Table(
                FORWARD,
                [param("w", "a b"), arg(0, "a b")],
                [out(0, "a b"), save(0), save(1), save(2), save(3)],
                saved=["primals_1", "primals_2", "primals_3", "primals_4"],
            ),
            Table(
                BACKWARD,
                [
                    param("w", "a b", grad=PRESENT),
                    arg(0, "a b", grad=PRESENT),
                    tangent(R(0), "a b", linked=False),
                ],
                [grad(P("w"), "a b"), grad(A(0), "a b")],
                saved=["primals_1", "primals_2", "primals_3", "primals_4"],
            ),
        ],
    ),
]


def _tied() -> tuple[torch.nn.Module, torch.Tensor]:
    model = Fn(multiply, two(3))
    return model, model.w
