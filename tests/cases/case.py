"""The words that the catalogue is written in.

A `Case` captures one small model, in one graph or several, and says in a `Table` for each what an index of it must
hold: the inputs in placeholder order and the outputs in output order, each a row. Rows are written from what torch's
documentation says of descriptors and from what eager autograd would do.

Rows name descriptors by short words: ``P("w")`` a parameter, ``B("b")`` a buffer, ``A(0)`` an argument, ``R(0)`` a
result, ``M(A(0))`` the new value of a mutated input, ``V(A(0))`` and ``S(A(0))`` a view base and a synthetic base.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

import attrs
from torch import fx
from torch._functorch._aot_autograd import descriptors as d
from torch._functorch._aot_autograd.descriptors import AOTInput, AOTOutput

from jointgraph import GradStatus, GraphKind, InputKind, OutputKind
from jointgraph.descriptors import SavedForBackwardsAOTInput
from tests.capture import Halves, JointWithDescriptors

Captured = JointWithDescriptors | fx.GraphModule | fx.Graph | None
JOINT, FORWARD, BACKWARD, INFERENCE = GraphKind.JOINT, GraphKind.FORWARD, GraphKind.BACKWARD, GraphKind.INFERENCE
PRESENT, MISSING, NOT_REQUESTED = GradStatus.PRESENT, GradStatus.MISSING, GradStatus.NOT_REQUESTED
P, B, A, R = d.ParamAOTInput, d.BufferAOTInput, d.PlainAOTInput, d.PlainAOTOutput
M, V, S = d.InputMutationAOTOutput, d.ViewBaseAOTInput, d.SyntheticBaseAOTInput
A_NODE: Final = object()
"""In place of an output's value: some node."""

INPUT_KINDS: dict[type[AOTInput], InputKind] = {
    d.ParamAOTInput: InputKind.PARAM,
    d.BufferAOTInput: InputKind.BUFFER,
    d.PlainAOTInput: InputKind.PLAIN,
    d.TangentAOTInput: InputKind.TANGENT,
    d.ViewBaseAOTInput: InputKind.VIEW_BASE,
    d.SyntheticBaseAOTInput: InputKind.SYNTHETIC_BASE,
    SavedForBackwardsAOTInput: InputKind.SAVED,
    d.ForwardTokenAOTInput: InputKind.TOKEN,
    d.BackwardTokenAOTInput: InputKind.TOKEN,
    d.PhiloxForwardSeedAOTInput: InputKind.PHILOX,
    d.PhiloxForwardBaseOffsetAOTInput: InputKind.PHILOX,
    d.PhiloxBackwardSeedAOTInput: InputKind.PHILOX,
    d.PhiloxBackwardBaseOffsetAOTInput: InputKind.PHILOX,
    d.DummyAOTInput: InputKind.DUMMY,
}
"""The kind that an input of each class must have."""

OUTPUT_KINDS: dict[type[AOTOutput], OutputKind] = {
    d.PlainAOTOutput: OutputKind.PLAIN,
    d.GradAOTOutput: OutputKind.GRAD,
    d.InputMutationAOTOutput: OutputKind.INPUT_MUTATION,
    d.MetadataMutationAOTOutput: OutputKind.METADATA_MUTATION,
    d.IntermediateBaseAOTOutput: OutputKind.INTERMEDIATE_BASE,
    d.SavedForBackwardsAOTOutput: OutputKind.SAVED,
    d.ForwardTokenAOTOutput: OutputKind.TOKEN,
    d.BackwardTokenAOTOutput: OutputKind.TOKEN,
    d.PhiloxUpdatedForwardOffsetAOTOutput: OutputKind.PHILOX,
    d.PhiloxUpdatedBackwardOffsetAOTOutput: OutputKind.PHILOX,
    d.DummyAOTOutput: OutputKind.DUMMY,
}
"""The kind that an output of each class must have."""

NO_VC_CHECK: type[AOTOutput] | None = getattr(d, "SavedForBackwardsNoVcCheckAOTOutput", None)
"""A class that torch has from 2.13 on."""
if NO_VC_CHECK is not None:
    OUTPUT_KINDS[NO_VC_CHECK] = OutputKind.SAVED


def _leaves(text: str) -> tuple[str, ...]:
    return tuple(text.split()) or ("",)


@attrs.frozen
class In:
    """What the index must say of one input."""

    desc: AOTInput
    leaves: tuple[str, ...] = attrs.field(default="", converter=_leaves)
    """The paths of its leaves in slot order; written as one text, which is empty for a plain value."""
    grad: GradStatus = NOT_REQUESTED
    mutated: bool = False
    """Whether the graph returns a new value for it."""
    aliases: Sequence[AOTInput] = ()
    linked: bool = True
    """Of a tangent: whether its output is in this graph."""
    used: bool = True


@attrs.frozen
class Out:
    """What the index must say of one output."""

    desc: AOTOutput
    leaves: tuple[str, ...] = attrs.field(default="", converter=_leaves)
    """The paths of its leaves in slot order; written as one text, which is empty for a plain value."""
    tangent: bool = False
    """Whether the graph takes its tangent in."""
    linked: bool = True
    """Of a gradient or a mutation: whether its input is in this graph."""
    value: object = A_NODE
    """What its only slot holds, where that is no node."""
    same_node_as: AOTInput | AOTOutput | None = None
    """Another value whose only node is its only node, too."""


@attrs.frozen
class Table:
    """What the index of one graph must say."""

    kind: GraphKind
    inputs: Sequence[In]
    outputs: Sequence[Out]
    saved: Sequence[str] | None = None
    """The names of the nodes carried to backward, in any order, where torch leaves no choice of them."""


def _tables(tables: Table | Sequence[Table]) -> tuple[Table, ...]:
    return (tables,) if isinstance(tables, Table) else tuple(tables)


@attrs.define(eq=False, slots=False)  # A cached property needs a __dict__.
class Case:
    """One small model, what it exercises, and what must come of it."""

    name: str
    line: str
    """What it exercises."""
    capture: Callable[[], Captured | Halves]
    tables: tuple[Table, ...] = attrs.field(converter=_tables)
    """One for each graph that is captured."""

    @cached_property
    def graphs(self) -> tuple[fx.Graph, ...]:
        """The graphs, captured when first asked for."""
        captured = self.capture()
        graphs = captured if isinstance(captured, Halves) else (captured,)
        return tuple(map(graph_of, graphs))


def graph_of(captured: Captured) -> fx.Graph:
    """The graph of whatever was captured."""
    if isinstance(captured, JointWithDescriptors):
        captured = captured.graph_module
    if isinstance(captured, fx.GraphModule):
        captured = captured.graph
    assert isinstance(captured, fx.Graph)
    return captured


def param(name: str, leaves: str = "", **what: Any) -> In:
    """A parameter."""
    return In(P(name), leaves, **what)


def buffer(name: str, leaves: str = "", **what: Any) -> In:
    """A buffer."""
    return In(B(name), leaves, **what)


def arg(idx: int, leaves: str = "", **what: Any) -> In:
    """A flat argument of the user's."""
    return In(A(idx), leaves, **what)


def tangent(output: d.DifferentiableAOTOutput, leaves: str = "", **what: Any) -> In:
    """The tangent of an output."""
    return In(d.TangentAOTInput(output), leaves, **what)


def carried(name: str) -> In:
    """An activation, in the backward graph."""
    return In(SavedForBackwardsAOTInput(name))


def out(idx: int, leaves: str = "", **what: Any) -> Out:
    """A flat result of the user's."""
    return Out(R(idx), leaves, **what)


def grad(of: d.DifferentiableAOTInput, leaves: str = "", **what: Any) -> Out:
    """The gradient of an input."""
    return Out(d.GradAOTOutput(of), leaves, **what)


def no_grad(of: d.DifferentiableAOTInput) -> Out:
    """The gradient that an input asked for in vain."""
    return Out(d.GradAOTOutput(of), value=None)


def mutation(of: AOTInput, leaves: str = "", **what: Any) -> Out:
    """The new value of a mutated input."""
    return Out(M(of), leaves, **what)


def save(idx: int, **what: Any) -> Out:
    """What a forward graph hands to its backward graph."""
    return Out(d.SavedForBackwardsAOTOutput(idx), **what)
