"""Inputs and outputs that AOTAutograd moves because they share a storage: view, synthetic and intermediate bases."""

from typing import Any

import torch
from torch import nn
from torch._functorch._aot_autograd import descriptors as d

from tests.capture import compiled, joint, partition
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
    In,
    M,
    Out,
    P,
    R,
    S,
    Table,
    V,
    arg,
    grad,
    mutation,
    out,
    param,
    tangent,
)
from tests.cases.models import Fn, X, wants_grad


def _double_first(w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.mul_(2)
    return (a.sum() + b.sum()) * w


def _double_two(w: torch.Tensor, *args: Any) -> torch.Tensor:
    a, n, c, x, b, e = args
    a.mul_(2)
    e.add_(n)
    y: torch.Tensor = (a.sum() + b.sum() + c.sum() + e.sum()) * w + x
    return y


def _transpose_and_double(w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.t_()
    b.mul_(2)
    return (a.sum() + b.sum()) * w


def _transpose_two(w: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    c.t_()
    return _transpose_and_double(w, a, b)


class _TwoParams(nn.Module):
    """Doubles its argument, a view of ``w``, without autograd's knowing."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            a.mul_(2)
        return (self.w * self.v).sum()


class _TwoBuffers(nn.Module):
    """The buffer ``row`` is a view of the buffer ``cache``."""

    cache: torch.Tensor
    row: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3))
        self.register_buffer("cache", torch.zeros(4, 3))
        self.register_buffer("row", self.cache[0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.row.add_(x)
        return (self.cache * self.w).sum()


def _views_of(base: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return base.view(-1), base[1:]


def _view_of_param() -> Captured:
    model = _TwoParams()
    with torch.no_grad():
        view = model.w[1:]
    return joint(model, view)


def _two_groups() -> Captured:
    p, q = torch.randn(4, 3), torch.randn(2, 3)
    return joint(Fn(_double_two), p.view(-1), 5, q.view(-1), torch.randn(3), p[1:], q[0])


def _aliases_unknown_to_autograd() -> tuple[torch.Tensor, torch.Tensor]:
    storage = torch.randn(12).untyped_storage()
    return torch.empty(0).set_(storage, 0, (4, 3), (3, 1)), torch.empty(0).set_(storage, 3, (9,), (1,))


def _synthetic_base() -> Captured:
    with torch.no_grad():
        return joint(Fn(_double_first), *_aliases_unknown_to_autograd())


def _square_and_flat() -> tuple[torch.Tensor, torch.Tensor]:
    base = torch.randn(2, 3)
    return base.view(2, 3), base.view(-1)


def _metadata_mutation_inference() -> Captured:
    with torch.no_grad():
        return joint(Fn(_transpose_and_double), *_square_and_flat())


def _two_metadata_mutations() -> Captured:
    base = torch.randn(2, 3)
    return joint(Fn(_transpose_two), base.view(2, 3), base.view(-1), base.view(2, 3))


def _three_views(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * w
    return y.view(-1), y[0], y.t()


def _view_and_base(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * w
    return y.view(-1), y


def _views_of_two(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y, z = x * w, x + w
    return y[0], z[0], y[1], z[1], (x * w).sum()


def _views_of_inputs(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.t(), w[1:], x * w


def _rows(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x * w).unbind()


def _intermediate(idx: int) -> d.IntermediateBaseAOTOutput:
    return d.IntermediateBaseAOTOutput(R(idx))


def _view_base_without_w(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.mul_(2)
    return a.sum() + b.sum()


BASE = V(A(0))

CASES = [
    Case(
        "view base",
        "Two views of one tensor, one of them mutated: their base takes the place of both, before the parameters.",
        lambda: joint(Fn(_double_first), *_views_of(wants_grad(4, 3).clone())),
        Table(
            JOINT,
            [
                In(BASE, grad=PRESENT, mutated=True),
                param("w", grad=PRESENT),
                tangent(M(BASE)),
                tangent(R(0)),
            ],
            [mutation(BASE, tangent=True), out(0, tangent=True), grad(BASE), grad(P("w"))],
        ),
    ),
    Case(
        "view base without gradient",
        "The same where the base wants no gradient: no tangent for its new value.",
        lambda: joint(Fn(_double_first), *_views_of(torch.randn(4, 3))),
        Table(
            JOINT,
            [In(BASE, mutated=True), param("w", grad=PRESENT), tangent(R(0))],
            [mutation(BASE), out(0, tangent=True), grad(P("w"))],
        ),
    ),
    Case(
        "view bases of two groups",
        "Two groups of views, with an int and a tensor in between: both bases come first, and idx has gaps.",
        _two_groups,
        Table(
            JOINT,
            [
                In(BASE, mutated=True),
                In(V(A(2)), mutated=True),
                arg(1, used=False),
                param("w", grad=PRESENT),
                arg(3),
                tangent(R(0)),
            ],
            [mutation(BASE), mutation(V(A(2))), out(0, tangent=True), grad(P("w"))],
        ),
    ),
    Case(
        "parameter in a view base",
        "An argument is a view of a parameter, and mutated: the parameter is in the base, and its name gone.",
        _view_of_param,
        Table(
            JOINT,
            [In(BASE, grad=PRESENT, mutated=True), param("v", grad=PRESENT), tangent(M(BASE)), tangent(R(0))],
            [mutation(BASE, tangent=True), out(0, tangent=True), grad(BASE), grad(P("v"))],
        ),
    ),
    Case(
        "buffers in a view base",
        "One buffer is a view of another, and mutated: both names are gone, but for the one that the base is of.",
        lambda: joint(_TwoBuffers(), torch.randn(3)),
        Table(
            JOINT,
            [In(V(B("row")), mutated=True), param("w", grad=PRESENT), arg(0), tangent(R(0))],
            [mutation(V(B("row"))), out(0, tangent=True), grad(P("w"))],
        ),
    ),
    Case(
        "view base, compiled",
        "A view base under torch.compile.",
        lambda: compiled(_view_base_without_w, *_views_of(wants_grad(4, 3).clone()), backward=False).joint,
        Table(
            JOINT,
            [In(BASE, grad=PRESENT, mutated=True), tangent(M(BASE)), tangent(R(0))],
            [mutation(BASE, tangent=True), out(0, tangent=True), grad(BASE)],
        ),
    ),
    Case(
        "synthetic base",
        "Two tensors on one storage of which autograd doesn't know: torch makes up a base; in inference alone.",
        _synthetic_base,
        Table(
            INFERENCE,
            [In(S(A(0)), mutated=True), param("w")],
            [mutation(S(A(0))), out(0)],
        ),
    ),
    Case(
        "metadata mutation",
        "Two aliases, one transposed in place: its sizes changed, which is an output after the results.",
        lambda: joint(Fn(_transpose_and_double), *_square_and_flat()),
        Table(
            JOINT,
            [In(BASE, mutated=True), param("w", grad=PRESENT), tangent(R(0))],
            [mutation(BASE), out(0, tangent=True), Out(d.MetadataMutationAOTOutput(0)), grad(P("w"))],
        ),
    ),
    Case(
        "two metadata mutations",
        "Two of three aliases are transposed in place: two outputs, numbered.",
        _two_metadata_mutations,
        Table(
            JOINT,
            [In(BASE, mutated=True), param("w", grad=PRESENT), tangent(R(0))],
            [
                mutation(BASE),
                out(0, tangent=True),
                Out(d.MetadataMutationAOTOutput(0)),
                Out(d.MetadataMutationAOTOutput(1)),
                grad(P("w")),
            ],
        ),
    ),
    Case(
        "metadata mutation, inference",
        "The same in an inference graph.",
        _metadata_mutation_inference,
        Table(
            INFERENCE,
            [In(BASE, mutated=True), param("w")],
            [mutation(BASE), out(0), Out(d.MetadataMutationAOTOutput(0))],
        ),
    ),
    Case(
        "intermediate base",
        "Three views of one intermediate are the results: it goes out after them, and has the only tangent.",
        lambda: joint(Fn(_three_views), X),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0), tangent(_intermediate(0))],
            [out(0), out(1), out(2), Out(_intermediate(0), tangent=True), grad(P("w"))],
        ),
    ),
    Case(
        "intermediate base returned",
        "A view and the tensor itself are the results: the latter serves as base, and has the only tangent.",
        lambda: joint(Fn(_view_and_base), X),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0), tangent(R(1))],
            [out(0), out(1, tangent=True), grad(P("w"))],
        ),
    ),
    Case(
        "two intermediate bases",
        "Views of two intermediates, and a result that aliases nothing.",
        lambda: joint(Fn(_views_of_two), X),
        Table(
            JOINT,
            [
                param("w", grad=PRESENT),
                arg(0),
                tangent(R(4)),
                tangent(_intermediate(0)),
                tangent(_intermediate(1)),
            ],
            [
                out(0),
                out(1),
                out(2),
                out(3),
                out(4, tangent=True),
                Out(_intermediate(0), tangent=True),
                Out(_intermediate(1), tangent=True),
                grad(P("w")),
            ],
        ),
    ),
    Case(
        "intermediate base, partitioned",
        "The base stays in the forward half, its tangent goes to the backward half.",
        lambda: partition(joint(Fn(_three_views), X)),
        [
            Table(
                FORWARD,
                [param("w"), arg(0)],
                [out(0), out(1), out(2), Out(_intermediate(0)), Out(d.SavedForBackwardsAOTOutput(0))],
                saved=["primals_2"],
            ),
            Table(
                BACKWARD,
                [arg(0), tangent(_intermediate(0), linked=False)],
                [grad(P("w"), linked=False)],
                saved=["primals_2"],
            ),
        ],
    ),
    Case(
        "views of inputs",
        "Results that are views of inputs have no tangent, as torch takes the views again from the inputs.",
        lambda: joint(Fn(_views_of_inputs), wants_grad(2, 3)),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0, grad=PRESENT), tangent(R(2))],
            [out(0), out(1), out(2, tangent=True), grad(P("w")), grad(A(0))],
        ),
    ),
    Case(
        "views from one operator",
        "All views that one operator made: each has a tangent, and there is no base.",
        lambda: joint(Fn(_rows), X),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0), tangent(R(0)), tangent(R(1))],
            [out(0, tangent=True), out(1, tangent=True), grad(P("w"))],
        ),
    ),
]
