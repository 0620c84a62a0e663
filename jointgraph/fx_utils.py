"""Torch's nine functions over joint graphs (``torch._functorch._aot_autograd.fx_utils``), with the import changed.

Names, arguments, results (keys, order, node objects) and the types of exceptions are torch's, on every well-formed
graph. Beyond that:

- each function also takes a `JointGraphIndex`, and shares what the others worked out from it: no second scan;
- a graph that breaks a rule is refused with every fault at once, where torch raises a bare ``KeyError`` or answers
  wrongly;
- where torch raises ``RuntimeError`` on tensor subclasses, they raise a `SubclassError`, which is one.
  `JointGraphIndex` has the answers.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, TypeVar, cast

from torch import fx

from jointgraph import _torch as t
from jointgraph.descriptors import SavedForBackwardsAOTInput
from jointgraph.exceptions import SubclassError, UnknownNameError, malformed
from jointgraph.index import JointGraphIndex
from jointgraph.interface import Interface
from jointgraph.scan import Values, missing_inputs

__all__ = [
    "get_all_input_and_grad_nodes",
    "get_all_output_and_tangent_nodes",
    "get_buffer_nodes",
    "get_named_buffer_nodes",
    "get_named_param_nodes",
    "get_param_and_grad_nodes",
    "get_param_nodes",
    "get_plain_input_and_grad_nodes",
    "get_plain_output_and_tangent_nodes",
]

Desc = TypeVar("Desc", bound=t.AOTInput | t.AOTOutput)
Pair = tuple[fx.Node, fx.Node | None]
"""As torch has it; an output's first may be ``None`` or a constant all the same."""
Pairs = dict[Desc, Pair]


def get_all_input_and_grad_nodes(g: fx.Graph | JointGraphIndex) -> Pairs[t.DifferentiableAOTInput]:
    """Every input that may be differentiable → its node, and the node of its gradient or ``None``.

    As torch's does, it includes tangents and integers, and says ``None`` both where no gradient was asked for and where
    none came. `JointGraphIndex.input_grads` and `Input.grad_status` tell these apart.

    Args:
        g: a joint graph, or an index of one.

    Raises:
        SubclassError: a ``RuntimeError``, if an output is a leaf of a tensor subclass.
        MalformedGraphError: if the graph breaks a rule; a ``KeyError`` and an ``AssertionError``.
        UnknownNameError: a ``KeyError``, for a gradient whose input is in the forward graph, or is a tensor subclass.
    """
    return _input_pairs(_interface(g)).copy()


def get_all_output_and_tangent_nodes(g: fx.Graph | JointGraphIndex) -> Pairs[t.DifferentiableAOTOutput]:
    """Every output that may be differentiable → its node, and its tangent's node or ``None``.

    As torch's does, it includes gradients. `JointGraphIndex.output_tangents` doesn't.

    Args:
        g: a joint graph, or an index of one.

    Raises:
        SubclassError: a ``RuntimeError``, if an input is a leaf of a tensor subclass.
        MalformedGraphError: if the graph breaks a rule; a ``KeyError`` and an ``AssertionError``.
        UnknownNameError: a ``KeyError``, for a tangent whose output is in the forward graph, or is a tensor subclass.
    """
    return _output_pairs(_interface(g)).copy()


def get_param_and_grad_nodes(graph: fx.Graph | JointGraphIndex) -> Pairs[t.ParamAOTInput]:
    """Every parameter → its node, and the node of its gradient or ``None``. See `get_all_input_and_grad_nodes`."""
    interface = _interface(graph)
    return _of_class(_input_pairs(interface), interface.scan.inputs, t.ParamAOTInput)


def get_plain_input_and_grad_nodes(graph: fx.Graph | JointGraphIndex) -> Pairs[t.PlainAOTInput]:
    """Every argument of the user's → its node, and the node of its gradient or ``None``.

    See `get_all_input_and_grad_nodes`.
    """
    interface = _interface(graph)
    return _of_class(_input_pairs(interface), interface.scan.inputs, t.PlainAOTInput)


def get_plain_output_and_tangent_nodes(graph: fx.Graph | JointGraphIndex) -> Pairs[t.PlainAOTOutput]:
    """Every result of the user's → its node, and its tangent's node or ``None``.

    See `get_all_output_and_tangent_nodes`.
    """
    interface = _interface(graph)
    return _of_class(_output_pairs(interface), interface.scan.outputs, t.PlainAOTOutput)


def get_named_param_nodes(graph: fx.Graph | JointGraphIndex) -> dict[str, fx.Node]:
    """Fully qualified name → node, for every parameter in placeholder order (`JointGraphIndex.params`).

    Args:
        graph: a graph, or an index of one.

    Raises:
        SubclassError: a ``RuntimeError``, if any input is a leaf of a tensor subclass.
        MalformedGraphError: if the graph breaks a rule; a ``KeyError`` and an ``AssertionError``.
    """
    return _nodes_by_name(graph, t.ParamAOTInput).copy()


def get_named_buffer_nodes(graph: fx.Graph | JointGraphIndex) -> dict[str, fx.Node]:
    """Fully qualified name → node, for every buffer in placeholder order (`JointGraphIndex.buffers`).

    Raises as `get_named_param_nodes` does.
    """
    return _nodes_by_name(graph, t.BufferAOTInput).copy()


def get_param_nodes(graph: fx.Graph | JointGraphIndex) -> list[fx.Node]:
    """The nodes of the parameters in placeholder order. Raises as `get_named_param_nodes` does."""
    return list(_nodes_by_name(graph, t.ParamAOTInput).values())


def get_buffer_nodes(graph: fx.Graph | JointGraphIndex) -> list[fx.Node]:
    """The nodes of the buffers in placeholder order. Raises as `get_named_param_nodes` does."""
    return list(_nodes_by_name(graph, t.BufferAOTInput).values())


def _interface(graph: fx.Graph | JointGraphIndex) -> Interface:
    """The interface of a graph, as it is now."""
    if not isinstance(graph, JointGraphIndex):
        return Interface(graph)
    graph._interface.verify()
    return graph._interface


def _inputs(interface: Interface, *, refuse_leaves: bool) -> Iterator[tuple[fx.Node, t.AOTInput]]:
    """Every placeholder with its descriptor, up to one that torch raises at."""
    for node, desc in interface.input_slots():
        if isinstance(desc, SavedForBackwardsAOTInput):
            raise malformed(missing_inputs(interface.scan.slots))
        if refuse_leaves and isinstance(desc, t.SubclassGetAttrAOTInput):
            raise _refusal(desc)
        yield node, desc


def _input_pairs(interface: Interface) -> Pairs[t.DifferentiableAOTInput]:
    return interface.kept_for_entries("input pairs", lambda: _pair_inputs(interface))


def _output_pairs(interface: Interface) -> Pairs[t.DifferentiableAOTOutput]:
    return interface.kept_for_entries("output pairs", lambda: _pair_outputs(interface))


def _pair_inputs(interface: Interface) -> Pairs[t.DifferentiableAOTInput]:
    scan = interface.scan
    linked = len(scan.grads) - scan.grads.count(None) == len(scan.outputs.of_class(t.GradAOTOutput))
    if linked and interface.is_plain and scan.args is scan.slots.output.args:
        return _of_class(cast(Mapping[Any, Pair], scan.pairs), scan.inputs, t.DifferentiableAOTInput)

    found: dict[t.AOTInput, tuple[fx.Node, object]] = {}
    for node, desc in _inputs(interface, refuse_leaves=False):
        if isinstance(desc, t.DifferentiableAOTInput):
            found[desc] = (node, None)
    for entry, slot in interface.output_slots():
        if isinstance(slot, t.SubclassGetAttrAOTOutput):
            raise _refusal(slot)
        if isinstance(slot, t.GradAOTOutput):
            if slot.grad_of in found:
                found[slot.grad_of] = (found[slot.grad_of][0], entry)
            elif not interface.leaves_out(slot.grad_of):
                raise _stranger(slot, slot.grad_of, "input")
    return cast("Pairs[t.DifferentiableAOTInput]", found)


def _pair_outputs(interface: Interface) -> Pairs[t.DifferentiableAOTOutput]:
    scan = interface.scan
    linked = len(scan.tangents) == len(scan.inputs.of_class(t.TangentAOTInput))
    if linked and interface.is_plain:
        tangents: list[fx.Node | None] = [None] * len(scan.outputs.descs)
        for number, tangent in scan.tangents.items():
            tangents[number] = scan.slots.placeholders[tangent]
        entries = compress(scan.slots.entries, scan.slots.outputs)
        pairs = cast(Mapping[Any, Pair], dict(zip(scan.outputs.descs, zip(entries, tangents))))
        return _of_class(pairs, scan.outputs, t.DifferentiableAOTOutput)

    found: dict[t.AOTOutput, tuple[object, fx.Node | None]] = {}
    for entry, slot in interface.output_slots():
        if isinstance(slot, t.DifferentiableAOTOutput):
            found[slot] = (entry, None)
    for node, desc in _inputs(interface, refuse_leaves=True):
        if isinstance(desc, t.TangentAOTInput):
            if desc.output in found:
                found[desc.output] = (found[desc.output][0], node)
            elif not interface.leaves_out(desc.output):
                raise _stranger(desc, desc.output, "output")
    return cast("Pairs[t.DifferentiableAOTOutput]", found)


def _of_class(pairs: Mapping[Any, Pair], values: Values[Any, Any], cls: type[Desc]) -> Pairs[Desc]:
    """Those of ``pairs`` whose key is of a class, in a new dictionary."""
    descs, found = values.descs, [numbers for own, numbers in values.by_class.items() if issubclass(own, cls)]
    if 2 * sum(map(len, found)) < len(descs):
        return {descs[number]: pairs[descs[number]] for number in values.of_class(cls) if descs[number] in pairs}
    kept = dict(pairs)  # A copy hashes nothing again.
    for own, numbers in values.by_class.items():
        if not issubclass(own, cls):
            for number in numbers:
                kept.pop(descs[number], None)
    return kept


def _nodes_by_name(
    graph: fx.Graph | JointGraphIndex, cls: type[t.ParamAOTInput | t.BufferAOTInput]
) -> dict[str, fx.Node]:
    interface = _interface(graph)
    return interface.kept(f"{cls.__name__} nodes", lambda: _name_nodes(interface, cls))


def _name_nodes(interface: Interface, cls: type[t.ParamAOTInput | t.BufferAOTInput]) -> dict[str, fx.Node]:
    if interface.is_plain:
        inputs, nodes = interface.scan.inputs, interface.scan.slots.placeholders
        descs = cast(Sequence[t.ParamAOTInput], inputs.descs)
        return {descs[number].target: nodes[number] for number in inputs.of_class(cls)}
    slots = _inputs(interface, refuse_leaves=True)
    return {desc.target: node for node, desc in slots if isinstance(desc, cls)}


def _refusal(desc: t.AOTInput | t.AOTOutput) -> SubclassError:
    return SubclassError(
        f"{desc} is a part of a tensor subclass, which this function has no answer for, like torch's of the same name. "
        "JointGraphIndex has: each subclass is one record there, with its parts in .leaves."
    )


def _stranger(desc: t.AOTInput | t.AOTOutput, owner: t.AOTInput | t.AOTOutput, side: str) -> UnknownNameError:
    return UnknownNameError(
        f"{desc} belongs to an {side} that is none of this graph's plain ones: it is in the other half of a "
        "partitioned graph, or a tensor subclass. JointGraphIndex answers there.",
        owner,
    )
