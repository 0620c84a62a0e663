"""Torch's nine functions over joint graphs (``torch._functorch._aot_autograd.fx_utils``), with the import changed.

Names, arguments, results (keys, order, node objects) and the types of exceptions are torch's, on every well-formed graph.
Beyond that:

- each function also takes a `JointGraphIndex`, and shares what the others worked out from it: no second scan;
- a graph that breaks a rule is refused with every fault at once, where torch raises a bare ``KeyError`` or answers wrongly;
- on tensor subclasses they raise a `SubclassError` where torch raises ``RuntimeError``. `JointGraphIndex` answers there.
"""

from itertools import compress, count
from typing import Any, TypeVar, cast

from torch import fx

from jointgraph import _torch as t
from jointgraph.descriptors import InputKind
from jointgraph.exceptions import SubclassError, UnknownNameError, malformed
from jointgraph.index import JointGraphIndex
from jointgraph.interface import Filters, Interface
from jointgraph.scan import missing_inputs

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
SubDesc = TypeVar("SubDesc", bound=t.AOTInput | t.AOTOutput)
Pairs = dict[Desc, tuple[fx.Node, fx.Node | None]]
"""Torch types the first node so; of an output it may be ``None`` or a constant all the same."""


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
    interface = _interface(g)
    return interface.kept_for_entries("input pairs", lambda: _input_pairs(interface)).copy()


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
    interface = _interface(g)
    return interface.kept_for_entries("output pairs", lambda: _output_pairs(interface)).copy()


def get_param_and_grad_nodes(graph: fx.Graph | JointGraphIndex) -> Pairs[t.ParamAOTInput]:
    """Every parameter → its node, and the node of its gradient or ``None``. See `get_all_input_and_grad_nodes`."""
    return _of_class(get_all_input_and_grad_nodes(graph), t.ParamAOTInput)


def get_plain_input_and_grad_nodes(graph: fx.Graph | JointGraphIndex) -> Pairs[t.PlainAOTInput]:
    """Every argument of the user's → its node, and the node of its gradient or ``None``.

    See `get_all_input_and_grad_nodes`.
    """
    return _of_class(get_all_input_and_grad_nodes(graph), t.PlainAOTInput)


def get_plain_output_and_tangent_nodes(graph: fx.Graph | JointGraphIndex) -> Pairs[t.PlainAOTOutput]:
    """Every result of the user's → its node, and its tangent's node or ``None``. See `get_all_output_and_tangent_nodes`."""
    return _of_class(get_all_output_and_tangent_nodes(graph), t.PlainAOTOutput)


def get_named_param_nodes(graph: fx.Graph | JointGraphIndex) -> dict[str, fx.Node]:
    """Fully qualified name → node, for every parameter in placeholder order (`JointGraphIndex.params`).

    Args:
        graph: a graph, or an index of one.

    Raises:
        SubclassError: a ``RuntimeError``, if any input is a leaf of a tensor subclass.
        MalformedGraphError: if the graph breaks a rule; a ``KeyError`` and an ``AssertionError``.
    """
    return {desc.target: node for desc, node in _nodes_of_class(graph, t.ParamAOTInput)}


def get_named_buffer_nodes(graph: fx.Graph | JointGraphIndex) -> dict[str, fx.Node]:
    """Fully qualified name → node, for every buffer in placeholder order (`JointGraphIndex.buffers`).

    Raises as `get_named_param_nodes` does.
    """
    return {desc.target: node for desc, node in _nodes_of_class(graph, t.BufferAOTInput)}


def get_param_nodes(graph: fx.Graph | JointGraphIndex) -> list[fx.Node]:
    """The nodes of the parameters in placeholder order. Raises as `get_named_param_nodes` does."""
    return [node for _, node in _nodes_of_class(graph, t.ParamAOTInput)]


def get_buffer_nodes(graph: fx.Graph | JointGraphIndex) -> list[fx.Node]:
    """The nodes of the buffers in placeholder order. Raises as `get_named_param_nodes` does."""
    return [node for _, node in _nodes_of_class(graph, t.BufferAOTInput)]


def _interface(graph: fx.Graph | JointGraphIndex) -> Interface:
    """The interface of a graph that has a descriptor in every slot, as it is now."""
    if isinstance(graph, JointGraphIndex):
        interface = graph._interface
        interface.verify()
    else:
        interface = Interface(graph, Filters())
    if interface.scan.inputs.of_kind(InputKind.SAVED):
        raise malformed(missing_inputs(interface.scan.slots))
    return interface


def _input_pairs(interface: Interface) -> Pairs[t.DifferentiableAOTInput]:
    scan = interface.scan
    entries, nodes = scan.slots.entries, scan.slots.placeholders
    if interface.is_plain and len(scan.grads) == len(scan.outputs.of_class(t.GradAOTOutput)):
        # All links are known by number: nothing but the keys is hashed.
        grads = {number: entries[scan.outputs.positions[output][0]] for number, output in scan.grads.items()}
        pairs = dict(zip(scan.inputs.descs, zip(nodes, map(grads.get, range(len(nodes))))))
        return _of_class(cast("Pairs[t.AOTInput]", pairs), t.DifferentiableAOTInput)

    found: dict[t.AOTInput, tuple[fx.Node, object]] = {}
    for node, desc in interface.input_slots():
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


def _output_pairs(interface: Interface) -> Pairs[t.DifferentiableAOTOutput]:
    scan = interface.scan
    entries, nodes = scan.slots.entries, scan.slots.placeholders
    if interface.is_plain and len(scan.tangents) == len(scan.inputs.of_class(t.TangentAOTInput)):
        tangents = {number: nodes[input] for number, input in scan.tangents.items()}
        described = compress(entries, scan.slots.outputs)
        pairs = dict(zip(scan.outputs.descs, zip(described, map(tangents.get, count()))))
        return _of_class(cast("Pairs[t.AOTOutput]", pairs), t.DifferentiableAOTOutput)

    found: dict[t.AOTOutput, tuple[object, fx.Node | None]] = {}
    for entry, slot in interface.output_slots():
        if isinstance(slot, t.DifferentiableAOTOutput):
            found[slot] = (entry, None)
    for node, desc in interface.input_slots():
        if isinstance(desc, t.SubclassGetAttrAOTInput):
            raise _refusal(desc)
        if isinstance(desc, t.TangentAOTInput):
            if desc.output in found:
                found[desc.output] = (found[desc.output][0], node)
            elif not interface.leaves_out(desc.output):
                raise _stranger(desc, desc.output, "output")
    return cast("Pairs[t.DifferentiableAOTOutput]", found)


def _of_class(pairs: Pairs[Any], cls: type[Desc]) -> Pairs[Desc]:
    """Those of ``pairs``, a new dictionary, whose key is of a class."""
    others = [desc for desc in pairs if not isinstance(desc, cls)]
    if len(others) > len(pairs) // 2:
        return {desc: pair for desc, pair in pairs.items() if isinstance(desc, cls)}
    kept = pairs.copy()  # Which hashes no descriptor again.
    for desc in others:
        del kept[desc]
    return kept


def _nodes_of_class(graph: fx.Graph | JointGraphIndex, cls: type[Desc]) -> list[tuple[Desc, fx.Node]]:
    """The placeholders whose descriptor is of a class, with that."""
    slots = list(_interface(graph).input_slots())
    for _, desc in slots:
        if isinstance(desc, t.SubclassGetAttrAOTInput):
            raise _refusal(desc)
    return [(desc, node) for node, desc in slots if isinstance(desc, cls)]


def _refusal(desc: t.AOTInput | t.AOTOutput) -> SubclassError:
    return SubclassError(
        f"{desc} is a part of a tensor subclass, which this function has no answer for, like torch's of the same name. "
        "JointGraphIndex has: each subclass is one record there, with its parts in .leaves."
    )


def _stranger(desc: t.AOTInput | t.AOTOutput, owner: t.AOTInput | t.AOTOutput, side: str) -> UnknownNameError:
    return UnknownNameError(
        f"{desc} belongs to an {side} that is none of this graph's plain ones: it is in the other half of a partitioned graph, "
        "or a tensor subclass. JointGraphIndex answers there.",
        owner,
    )
