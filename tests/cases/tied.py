"""One tensor under several names: which of them a graph has, and on which each has its gradient."""

import torch
from torch import nn

from tests.capture import compiled, joint
from tests.cases.case import (
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
    tangent,
)

IDS = torch.arange(5)


class Tied(nn.Module):
    """An embedding and a head on one weight."""

    def __init__(self, mutate: bool = False) -> None:
        super().__init__()
        self.emb, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.emb.weight
        self.mutate = mutate

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.mutate:
            with torch.no_grad():
                self.emb.weight.mul_(2)
        y: torch.Tensor = self.head(self.emb(ids))
        return y


class _Shared(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = self.first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(self.first(x))
        return y


class _SameStorage(nn.Module):
    """Two parameters on one storage: the second is what ``view`` makes of the first."""

    def __init__(self, transpose: bool) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(3, 3))
        seen = self.a.detach()
        self.b = nn.Parameter(seen.t() if transpose else seen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.a @ self.b


class _TiedBuffers(nn.Module):
    """One buffer under two names, mutated by the first."""

    a: torch.Tensor
    b: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3))
        self.register_buffer("a", torch.zeros(3))
        self.register_buffer("b", self.a)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.a.add_(1)
        return x * self.w * self.b


class _WithArgument(nn.Linear):
    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # one argument more
        return super().forward(x) * w.sum()


class _Twice(nn.Linear):
    mutate = False

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: float | torch.Tensor = 0) -> torch.Tensor:  # type: ignore[override]  # more
        if self.mutate:
            x.mul_(2)
        return super().forward(x) + super().forward(y) + z


class _TwiceMutated(_Twice):
    mutate = True


def _param_as_argument() -> Captured:
    model = _WithArgument(3, 2)
    return joint(model, torch.randn(2, 3), model.weight)


def _same_argument_twice() -> Captured:
    x = torch.randn(2, 3, requires_grad=True)
    return joint(_Twice(3, 2), x, x)


def _same_argument_twice_mutated() -> Captured:
    x = torch.randn(2, 3)
    return joint(_TwiceMutated(3, 2), x, x, torch.randn(2, 2))


def _export(strict: bool) -> Captured:
    return joint(torch.export.export(Tied(), (IDS,), strict=strict).module(), IDS)


CASES = [
    Case(
        "raw module",
        "Both names of a tied weight are inputs on one storage, each with its part of the gradient.",
        lambda: joint(Tied(), IDS),
        Table(
            JOINT,
            [
                param("emb.weight", grad=PRESENT, aliases=[P("head.weight")]),
                param("head.weight", grad=PRESENT, aliases=[P("emb.weight")]),
                arg(0),
                tangent(R(0)),
            ],
            [out(0, tangent=True), grad(P("emb.weight")), grad(P("head.weight"))],
        ),
    ),
    Case(
        "strict export",
        "Strict export keeps one name, with the whole gradient.",
        lambda: _export(strict=True),
        Table(
            JOINT,
            [param("emb.weight", grad=PRESENT), arg(0), tangent(R(0))],
            [out(0, tangent=True), grad(P("emb.weight"))],
        ),
    ),
    Case(
        "export",
        "Export that is not strict keeps both names, and reads one alone: that has the whole gradient.",
        lambda: _export(strict=False),
        Table(
            JOINT,
            [
                param("emb.weight", grad=MISSING, aliases=[P("head.weight")], used=False),
                param("head.weight", grad=PRESENT, aliases=[P("emb.weight")]),
                arg(0),
                tangent(R(0)),
            ],
            [out(0, tangent=True), no_grad(P("emb.weight")), grad(P("head.weight"))],
        ),
    ),
    Case(
        "compiled",
        "Under torch.compile a tied weight is one argument, with the whole gradient.",
        lambda: compiled(Tied(), IDS).joint,
        Table(
            JOINT,
            [arg(0, grad=PRESENT), arg(1), tangent(R(0))],
            [out(0, tangent=True), grad(A(0))],
        ),
    ),
    Case(
        "mutated",
        "A tied weight that is mutated: torch keeps one name.",
        lambda: joint(Tied(mutate=True), IDS),
        Table(
            JOINT,
            [
                param("emb.weight", grad=PRESENT, mutated=True),
                arg(0),
                tangent(M(P("emb.weight"))),
                tangent(R(0)),
            ],
            [mutation(P("emb.weight"), tangent=True), out(0, tangent=True), grad(P("emb.weight"))],
        ),
    ),
    Case(
        "shared layer",
        "One layer under two names: the names pair up weight with weight and bias with bias.",
        lambda: joint(_Shared(), torch.randn(2, 3)),
        Table(
            JOINT,
            [
                param("first.weight", grad=MISSING, aliases=[P("second.weight")], used=False),
                param("first.bias", grad=MISSING, aliases=[P("second.bias")], used=False),
                param("second.weight", grad=PRESENT, aliases=[P("first.weight")]),
                param("second.bias", grad=PRESENT, aliases=[P("first.bias")]),
                arg(0),
                tangent(R(0)),
            ],
            [
                out(0, tangent=True),
                no_grad(P("first.weight")),
                no_grad(P("first.bias")),
                grad(P("second.weight")),
                grad(P("second.bias")),
            ],
        ),
    ),
    Case(
        "two parameters on one storage",
        "Two parameter objects of the same bytes and the same geometry are aliases.",
        lambda: joint(_SameStorage(transpose=False), torch.randn(2, 3)),
        Table(
            JOINT,
            [
                param("a", grad=PRESENT, aliases=[P("b")]),
                param("b", grad=PRESENT, aliases=[P("a")]),
                arg(0),
                tangent(R(0)),
            ],
            [out(0, tangent=True), grad(P("a")), grad(P("b"))],
        ),
    ),
    Case(
        "transposed parameter",
        "The same bytes with other strides are no alias.",
        lambda: joint(_SameStorage(transpose=True), torch.randn(2, 3)),
        Table(
            JOINT,
            [param("a", grad=PRESENT), param("b", grad=PRESENT), arg(0), tangent(R(0))],
            [out(0, tangent=True), grad(P("a")), grad(P("b"))],
        ),
    ),
    Case(
        "buffers",
        "A tied buffer that is mutated: torch keeps one name.",
        lambda: joint(_TiedBuffers(), torch.randn(3)),
        Table(
            JOINT,
            [param("w", grad=PRESENT), buffer("a", mutated=True), arg(0), tangent(R(0))],
            [mutation(B("a")), out(0, tangent=True), grad(P("w"))],
        ),
    ),
    Case(
        "parameter as argument",
        "A parameter is an argument as well: a parameter and a plain input are aliases.",
        _param_as_argument,
        Table(
            JOINT,
            [
                param("weight", grad=PRESENT, aliases=[A(1)]),
                param("bias", grad=PRESENT),
                arg(0),
                arg(1, grad=PRESENT, aliases=[P("weight")]),
                tangent(R(0)),
            ],
            [out(0, tangent=True), grad(P("weight")), grad(P("bias")), grad(A(1))],
        ),
    ),
    Case(
        "one argument twice",
        "One tensor as two arguments: two inputs, each with its part of the gradient.",
        _same_argument_twice,
        Table(
            JOINT,
            [
                param("weight", grad=PRESENT),
                param("bias", grad=PRESENT),
                arg(0, grad=PRESENT, aliases=[A(1)]),
                arg(1, grad=PRESENT, aliases=[A(0)]),
                tangent(R(0)),
            ],
            [out(0, tangent=True), grad(P("weight")), grad(P("bias")), grad(A(0)), grad(A(1))],
        ),
    ),
    Case(
        "one argument twice, mutated",
        "One mutated tensor as two arguments: torch keeps the first, and idx has a gap.",
        _same_argument_twice_mutated,
        Table(
            JOINT,
            [
                param("weight", grad=PRESENT),
                param("bias", grad=PRESENT),
                arg(0, mutated=True),
                arg(2),
                tangent(R(0)),
            ],
            [mutation(A(0)), out(0, tangent=True), grad(P("weight")), grad(P("bias"))],
        ),
    ),
]
