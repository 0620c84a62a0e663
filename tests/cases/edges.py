"""Odd outputs, odd arguments, gradients that don't come, and graphs with next to nothing in them."""

from typing import Any

import torch
from torch import fx, nn
from torch._functorch._aot_autograd import descriptors as d

from tests.capture import compiled, joint
from tests.cases.case import (
    INFERENCE,
    JOINT,
    MISSING,
    PRESENT,
    A,
    B,
    Captured,
    Case,
    In,
    Out,
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
from tests.cases.models import Fn, X, wants_grad

TANGENT = d.TangentAOTInput


def _return_twice(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * w
    return y, y


def _return_inputs(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x, y, w, x * w + y, x


def _return_odd(w: torch.Tensor, x: torch.Tensor) -> tuple[object, ...]:
    return x * w, None, 7, "word", 2.5, True, x.shape[0]


def _return_tree(w: torch.Tensor, x: torch.Tensor) -> dict[str, Any]:
    return {"loss": (x * w).sum(), "extra": [x * w, (None, w.detach())]}


def _return_undifferentiable(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * w
    return y.argmax(), y.detach(), y.sum(), y > 0


def _add_all(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return w + x + y


def _odd_arguments(w: torch.Tensor, *args: Any, scale: torch.Tensor, k: None = None) -> torch.Tensor:
    x, n, s, *_ = args
    y: torch.Tensor = (x * w * n + s) * scale
    return y


def _tree_arguments(w: torch.Tensor, xs: list[torch.Tensor], tree: dict[str, Any], *, z: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = xs[0] * w + xs[1] + tree["a"] + tree["b"][0] + z
    return y


def _index(w: torch.Tensor, idx: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (w[idx] * mask).sum()


def _absolute(w: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    return (z * w).abs()


def _real(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (x * w).real


def _detach(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (x * w).detach()


def _sine(w: torch.Tensor) -> torch.Tensor:
    return w.sin()


def _nothing(w: torch.Tensor, x: torch.Tensor) -> tuple[()]:
    return ()


def _choose(w: torch.Tensor, x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x * w, lambda x: x + w, (x,))


def _scale_by_int(x: torch.Tensor, n: int) -> torch.Tensor:
    return x * n + n


def _double_and_size(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return x * 2, x.shape[0] * 2


class _Gradients(nn.Module):
    """Parameters that are used, unused, detached and frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))
        self.detached = nn.Parameter(torch.randn(3))
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return x * self.used + self.detached.detach() + self.frozen + y.detach()


class _Sum(nn.Module):
    """Two parameters with one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (self.a + self.b)


class _Product(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * y


class _Ones(nn.Module):
    def forward(self) -> torch.Tensor:
        return torch.ones(3)


class _CountOnly(nn.Module):
    n: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> None:
        self.n.add_(x)


class _GivesInput(torch.autograd.Function):
    """The gradient of the first argument is the second one, of the second there is none."""

    @staticmethod
    def forward(ctx: Any, w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return w * x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return ctx.saved_tensors[0], None


def _gradient_is_input(w: torch.Tensor, x: torch.Tensor) -> Any:
    return _GivesInput.apply(w, x)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _no_grad() -> Captured:
    with torch.no_grad():
        return joint(Fn(_return_odd), X)


def _dummies() -> fx.Graph:
    """A graph with the descriptors that stand for none; no capture has them."""
    graph = fx.Graph()
    placeholder = graph.placeholder("arg")
    placeholder.meta["desc"] = d.DummyAOTInput(0)
    graph.output([placeholder])
    graph.output_node().meta["desc"] = [d.DummyAOTOutput(0)]
    return graph


ODD_VALUES: list[object] = [None, 7, "word", 2.5, True, 2]
ODD = [out(idx, value=value) for idx, value in enumerate(ODD_VALUES, 1)]

CASES = [
    Case(
        "linear",
        "The plainest graph: two parameters, an argument, a result.",
        lambda: joint(nn.Linear(3, 2), X),
        Table(
            JOINT,
            [param("weight", grad=PRESENT), param("bias", grad=PRESENT), arg(0), tangent(R(0))],
            [out(0, tangent=True), grad(P("weight")), grad(P("bias"))],
        ),
    ),
    Case(
        "output twice",
        "One tensor returned twice: one node, two results, two tangents.",
        lambda: joint(Fn(_return_twice), X),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0), tangent(R(0)), tangent(R(1))],
            [out(0, tangent=True), out(1, tangent=True, same_node_as=R(0)), grad(P("w"))],
        ),
    ),
    Case(
        "inputs returned",
        "Arguments and a parameter returned as they came, one twice: no tangents; a gradient that is a tangent.",
        lambda: joint(Fn(_return_inputs), X, wants_grad(2, 3)),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0), arg(1, grad=PRESENT), tangent(R(3))],
            [
                out(0, same_node_as=A(0)),
                out(1, same_node_as=A(1)),
                out(2, same_node_as=P("w")),
                out(3, tangent=True),
                out(4, same_node_as=A(0)),
                grad(P("w")),
                grad(A(1), same_node_as=TANGENT(R(3))),
            ],
        ),
    ),
    Case(
        "odd outputs",
        "None, numbers and a string as results.",
        lambda: joint(Fn(_return_odd), X),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0), tangent(R(0))],
            [out(0, tangent=True), *ODD, grad(P("w"))],
        ),
    ),
    Case(
        "tree of outputs",
        "A dictionary with a list and a tuple: idx counts the flat results.",
        lambda: joint(Fn(_return_tree), X),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0), tangent(R(0)), tangent(R(1))],
            [out(0, tangent=True), out(1, tangent=True), out(2, value=None), out(3), grad(P("w"))],
        ),
    ),
    Case(
        "outputs without gradient",
        "Integers, booleans and a detached tensor as results have no tangent.",
        lambda: joint(Fn(_return_undifferentiable), X),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0), tangent(R(2))],
            [out(0), out(1), out(2, tangent=True), out(3), grad(P("w"))],
        ),
    ),
    Case(
        "gradient is the tangent",
        "Of a sum, each gradient is the tangent itself: one placeholder in three roles.",
        lambda: joint(Fn(_add_all), wants_grad(3), torch.randn(3)),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0, grad=PRESENT), arg(1), tangent(R(0))],
            [
                out(0, tangent=True),
                grad(P("w"), same_node_as=TANGENT(R(0))),
                grad(A(0), same_node_as=TANGENT(R(0))),
            ],
        ),
    ),
    Case(
        "gradient is an input",
        "A gradient that is an argument's placeholder, and a tangent that nothing reads.",
        lambda: joint(Fn(_gradient_is_input), torch.randn(3)),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0), tangent(R(0), used=False)],
            [out(0, tangent=True), grad(P("w"), same_node_as=A(0))],
        ),
    ),
    Case(
        "one gradient for two",
        "Two parameters whose gradients are one node.",
        lambda: joint(_Sum(), X),
        Table(
            JOINT,
            [param("a", grad=PRESENT), param("b", grad=PRESENT), arg(0), tangent(R(0))],
            [out(0, tangent=True), grad(P("a")), grad(P("b"), same_node_as=d.GradAOTOutput(P("a")))],
        ),
    ),
    Case(
        "odd arguments",
        "Numbers, None, a bool and a string as arguments, and keyword arguments, which come last.",
        lambda: joint(Fn(_odd_arguments), X, 3, 2.5, None, True, "word", scale=torch.randn(3), k=None),
        Table(
            JOINT,
            [
                param("w", grad=PRESENT),
                arg(0),
                *(arg(idx, used=False) for idx in range(1, 6)),
                arg(6),
                arg(7, used=False),
                tangent(R(0)),
            ],
            [out(0, tangent=True), grad(P("w"))],
        ),
    ),
    Case(
        "tree of arguments",
        "Lists and dictionaries of tensors: idx counts the flat arguments.",
        lambda: joint(
            Fn(_tree_arguments),
            [torch.randn(3), torch.randn(3)],
            {"b": (torch.randn(3),), "a": torch.randn(3)},
            z=torch.randn(3),
        ),
        Table(
            JOINT,
            [param("w", grad=PRESENT), *map(arg, range(5)), tangent(R(0))],
            [out(0, tangent=True), grad(P("w"))],
        ),
    ),
    Case(
        "integer tensors",
        "Tensors of integers and booleans as arguments want no gradient.",
        lambda: joint(Fn(_index), torch.tensor([0, 2]), torch.tensor([True, False])),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0), arg(1), tangent(R(0))],
            [out(0, tangent=True), grad(P("w"))],
        ),
    ),
    Case(
        "complex argument",
        "A complex argument with a gradient, and a real result.",
        lambda: joint(Fn(_absolute), torch.randn(2, 3, dtype=torch.complex64, requires_grad=True)),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0, grad=PRESENT), tangent(R(0))],
            [out(0, tangent=True), grad(P("w")), grad(A(0))],
        ),
    ),
    Case(
        "complex parameter",
        "A complex parameter, and the real view of what comes of it.",
        lambda: joint(Fn(_real, torch.randn(3, dtype=torch.complex64)), X),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0), tangent(R(0))],
            [out(0, tangent=True), grad(P("w"))],
        ),
    ),
    Case(
        "gradients missing",
        "Unused and detached inputs ask for a gradient in vain; a frozen parameter doesn't ask.",
        lambda: joint(_Gradients(), wants_grad(3), wants_grad(3), wants_grad(3)),
        Table(
            JOINT,
            [
                param("used", grad=PRESENT),
                param("unused", grad=MISSING, used=False),
                param("detached", grad=MISSING),
                param("frozen"),
                arg(0, grad=PRESENT),
                arg(1, grad=MISSING),
                arg(2, grad=MISSING, used=False),
                tangent(R(0)),
            ],
            [
                out(0, tangent=True),
                grad(P("used")),
                no_grad(P("unused")),
                no_grad(P("detached")),
                grad(A(0)),
                no_grad(A(1)),
                no_grad(A(2)),
            ],
        ),
    ),
    Case(
        "frozen parameters",
        "All parameters frozen, and an argument that wants a gradient: still a joint graph.",
        lambda: joint(nn.Linear(3, 2).requires_grad_(False), wants_grad(2, 3)),
        Table(
            JOINT,
            [param("weight"), param("bias", used=True), arg(0, grad=PRESENT), tangent(R(0))],
            [out(0, tangent=True), grad(A(0))],
        ),
    ),
    Case(
        "all frozen",
        "Nothing wants a gradient: an inference graph, though gradients are on.",
        lambda: joint(nn.Linear(3, 2).requires_grad_(False), X),
        Table(INFERENCE, [param("weight"), param("bias"), arg(0)], [out(0)]),
    ),
    Case(
        "no gradients",
        "Capture under no_grad, with odd outputs.",
        _no_grad,
        Table(INFERENCE, [param("w"), arg(0)], [out(0), *ODD]),
    ),
    Case(
        "all detached",
        "A parameter that wants a gradient, and no result with one: an inference graph.",
        lambda: joint(Fn(_detach), X),
        Table(INFERENCE, [param("w"), arg(0)], [out(0)]),
    ),
    Case(
        "no arguments",
        "A parameter and nothing else.",
        lambda: joint(Fn(_sine)),
        Table(JOINT, [param("w", grad=PRESENT), tangent(R(0))], [out(0, tangent=True), grad(P("w"))]),
    ),
    Case(
        "no parameters",
        "Arguments alone, one with a gradient.",
        lambda: joint(_Product(), wants_grad(3), torch.randn(3)),
        Table(JOINT, [arg(0, grad=PRESENT), arg(1), tangent(R(0))], [out(0, tangent=True), grad(A(0))]),
    ),
    Case("no inputs", "No parameters, no arguments.", lambda: joint(_Ones()), Table(INFERENCE, [], [out(0)])),
    Case(
        "no results",
        "A model that returns None and mutates a buffer.",
        lambda: joint(_CountOnly(), torch.randn(3)),
        Table(INFERENCE, [buffer("n", mutated=True), arg(0)], [mutation(B("n")), out(0, value=None)]),
    ),
    Case(
        "no outputs",
        "A model that returns an empty tuple: an empty output list.",
        lambda: joint(Fn(_nothing), X),
        Table(INFERENCE, [param("w", used=False), arg(0, used=False)], []),
    ),
    Case(
        "symbolic int argument",
        "Under torch.compile with dynamic shapes, sizes and ints are arguments.",
        lambda: compiled(_scale_by_int, wants_grad(5, 3), 4, dynamic=True).joint,
        Table(
            JOINT,
            [arg(0, used=False), arg(1, used=False), arg(2, grad=PRESENT), arg(3), tangent(R(0))],
            [out(0, tangent=True), grad(A(2))],
        ),
    ),
    Case(
        "symbolic int result",
        "A size as a result: a node without a tangent.",
        lambda: compiled(_double_and_size, wants_grad(5, 3), dynamic=True).joint,
        Table(
            JOINT,
            [arg(0), arg(1, used=False), arg(2, grad=PRESENT), tangent(R(0))],
            [out(0, tangent=True), out(1), grad(A(2))],
        ),
    ),
    Case(
        "branches",
        "A conditional: its branches are graphs of their own, which the interface doesn't show.",
        lambda: compiled(Fn(_choose), X).joint,
        Table(
            JOINT,
            [arg(0, grad=PRESENT), arg(1), tangent(R(0))],
            [out(0, tangent=True), grad(A(0))],
        ),
    ),
    Case(
        "dummies",
        "Descriptors that stand for none, on a hand-made graph.",
        _dummies,
        Table(
            INFERENCE,
            [In(d.DummyAOTInput(0))],
            [Out(d.DummyAOTOutput(0), same_node_as=d.DummyAOTInput(0))],
        ),
    ),
]
