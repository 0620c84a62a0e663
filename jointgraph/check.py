"""The rules that a graph's interface, its interior and its runtime wrapper must keep, looked at one by one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import attrs
import torch
from torch import fx

from jointgraph import _torch as t
from jointgraph import fake_values
from jointgraph.descriptors import GraphKind, InputKind, OutputKind, is_size_or_stride, leaf_path
from jointgraph.exceptions import MalformedGraphError
from jointgraph.fake_values import difference
from jointgraph.findings import Finding, FindingCode
from jointgraph.interface import Interface
from jointgraph.layout import is_backward
from jointgraph.phases import Phase, find_phases
from jointgraph.runtime import check_runtime
from jointgraph.scan import Scan, Values
from jointgraph.slots import Slots

_HAS_TANGENT = (OutputKind.PLAIN, OutputKind.INPUT_MUTATION, OutputKind.INTERMEDIATE_BASE)
"""The kinds of outputs that have a tangent where they are differentiable."""


_UNORDERED = {FindingCode.ERASED_NODE, FindingCode.FOREIGN_NODE, FindingCode.ORDER}
"""The rules without which dataflow can't be followed."""
_TAGS = {"is_forward": Phase.BACKWARD, "is_backward": Phase.FORWARD}
"""What AOTAutograd's tag says that a node is not."""


def check(interface: Interface, joint: object = None) -> tuple[Finding, ...]:
    """All that is wrong with a graph as it is now, or odd about it; see `JointGraphIndex.check`."""
    scan, findings = _read(interface)
    findings += _interior(interface.graph)
    if scan is not None:
        findings += [*_agreement(scan), *_names(scan)]
        findings += check_runtime(scan, joint) if joint is not None else ()
    findings += _values(interface.graph)
    if scan is not None:
        findings += [*_missing_tangents(scan), *_dead_inputs(scan)]
        if not _UNORDERED.intersection(finding.code for finding in findings):
            findings += _tags(interface)
    return tuple(attrs.evolve(finding, around=_around(finding)) for finding in findings)


def errors(interface: Interface) -> tuple[Finding, ...]:
    """The errors of a graph as it is now, without running its operators on fake tensors. Linear in its nodes."""
    scan, findings = _read(interface)
    findings += _interior(interface.graph)
    findings += [*_agreement(scan), *_names(scan)] if scan is not None else ()
    return tuple(attrs.evolve(finding, around=_around(finding)) for finding in findings)


def _read(interface: Interface) -> tuple[Scan | None, list[Finding]]:
    """A new reading of the graph; or, where it breaks a rule that makes that impossible, what that is."""
    try:
        return interface.read_graph(), []
    except MalformedGraphError as error:
        return None, [*error.findings]


def _interior(graph: fx.Graph) -> Iterator[Finding]:
    """Nodes that read what is erased, what is of another graph, or what comes later."""
    seen: set[fx.Node] = set()
    returned = False
    for node in graph.nodes:
        if returned:
            rule, remedy = "it comes after the output node.", f"Move it before that: {node.name} is never computed."
            yield Finding(FindingCode.ORDER, f"node {node.name}", rule, remedy, node)
        returned = returned or node.op == "output"
        for read in node.all_input_nodes:
            if read not in seen:
                yield _misread(node, read)
        seen.add(node)


def _misread(node: fx.Node, read: fx.Node) -> Finding:
    """The finding of a node that reads one that does not come before it."""
    where = _where(node, read)
    swap = f"Give it another node: {node.name}.replace_input_with(...)."
    if read._erased:
        return Finding(FindingCode.ERASED_NODE, where, f"it reads {read}, which was erased.", swap, node)
    if read.graph is not node.graph:
        return Finding(FindingCode.FOREIGN_NODE, where, f"it reads {read}, a node of another graph.", swap, node)
    rule, remedy = f"it reads {read}, which comes after it.", f"Move that before it: {node.name}.prepend({read.name})."
    return Finding(FindingCode.ORDER, where, rule, remedy, node)


def _where(node: fx.Node, read: fx.Node) -> str:
    """A node that reads another, or the slots of the output list that hold it, for messages."""
    if node.op != "output":
        return f"node {node.name}"
    returned = node.args[0]
    entries = returned if isinstance(returned, (list, tuple)) else (returned,)
    return ", ".join(f"output[{i}] ({read})" for i, entry in enumerate(entries) if entry is read) or "output"


def _agreement(scan: Scan) -> Iterator[Finding]:
    """Gradients that differ from their inputs, and tangents that differ from their outputs."""
    slots = scan.slots
    for number, grad in enumerate(scan.grads):
        if grad is not None:
            owner, remedy = scan.inputs.descs[number], "Return one that fits, or change the input's val to it."
            for theirs, own in _leaf_pairs(scan.inputs, number, scan.outputs, grad):
                differs = difference(_returned_val(slots, own), slots.placeholders[theirs].meta.get("val"))
                if differs:
                    rule = f"it has {differs}, that of {owner}, whose gradient it is."
                    yield slots.output_finding(own, FindingCode.GRADIENT_MISMATCH, rule, remedy)
    for output, tangent in scan.tangents.items():
        made, remedy = scan.outputs.descs[output], "Change the tangent's val to that of the output, or the output."
        for theirs, own in _leaf_pairs(scan.outputs, output, scan.inputs, tangent):
            differs = difference(slots.placeholders[own].meta.get("val"), _returned_val(slots, theirs))
            if differs:
                rule = f"it has {differs}, that of {made}, whose tangent it is."
                yield slots.input_finding(own, FindingCode.TANGENT_MISMATCH, rule, remedy)


def _names(scan: Scan) -> Iterator[Finding]:
    """Placeholders of a joint graph that torch's partitioners take for what they are not."""
    if scan.kind is not GraphKind.JOINT:
        return
    for number, kind in enumerate(scan.inputs.kinds):
        for position in scan.inputs.positions[number]:
            target, desc = str(scan.slots.placeholders[position].target), scan.slots.inputs[position]
            if (kind is InputKind.TANGENT or not is_backward(desc)) and ("tangents" in target) != (
                kind is InputKind.TANGENT
            ):
                taken = "an input of forward" if kind is InputKind.TANGENT else "a tangent"
                rule = f"torch's partitioners take it for {taken}, by its target {target!r}."
                remedy = "Change node.target: that of a tangent, and of no other, has 'tangents' in it."
                yield scan.slots.input_finding(position, FindingCode.PLACEHOLDER_NAME, rule, remedy)


def _tags(interface: Interface) -> Iterator[Finding]:
    """Nodes on another side than AOTAutograd's tag says."""
    interface.verify()
    nodes = list(interface.graph.nodes)
    phases = find_phases(interface, nodes)
    for node in nodes:
        tag = node.meta.get("partitioner_tag", "is_backward" if node.meta.get("autograd_backward") else None)
        if node.op != "placeholder" and tag in _TAGS and phases.of(node) is _TAGS[tag]:
            rule = f"it is tagged {tag!r}, and {'depends on a tangent' if tag == 'is_forward' else 'forward needs it'}."
            yield Finding(FindingCode.PHASE_TAG, f"node {node.name}", rule, "Take the tag off, if you moved it.", node)


def _leaf_pairs(
    one: Values[Any, Any], number: int, other: Values[Any, Any], other_number: int
) -> Iterator[tuple[int, int]]:
    """The positions of the leaves that two values have both; sizes and strides aside."""
    left, right = _tensors(one, number), _tensors(other, other_number)
    return ((position, right[path]) for path, position in left.items() if path in right)


def _tensors(values: Values[Any, Any], number: int) -> Mapping[str, int]:
    """The positions of a value's slots by path, sizes and strides aside."""
    described = ((at, cast(t.AOTInput | t.AOTOutput, values.slots[at])) for at in values.positions[number])
    return {leaf_path(desc): at for at, desc in described if not is_size_or_stride(desc)}


def _returned_val(slots: Slots, position: int) -> Any:
    entry = slots.entries[position]
    return entry.meta.get("val") if isinstance(entry, fx.Node) else entry


def _values(graph: fx.Graph) -> Iterator[Finding]:
    """Nodes whose ``meta["val"]`` is missing, or not what their operator makes of their arguments."""
    mode = fake_values.mode_of(graph.nodes)
    for node in graph.nodes:
        if node.op in {"get_attr", "output"}:
            continue
        where = f"{'placeholder' if node.op == 'placeholder' else 'node'} {node.name}"
        remedy = "Set it, by index.edit().set_val(...) for an input or by running the operator on fake tensors."
        if "val" not in node.meta:
            if node.users:
                yield Finding(FindingCode.MISSING_VAL, where, 'it has no meta["val"].', remedy, node)
            continue
        if fake_values.is_real(node.meta["val"]) and mode is not None:
            rule = 'its meta["val"] is a real tensor, where the others are fake.'
            yield Finding(FindingCode.STALE_VAL, where, rule, remedy, node)
            continue
        try:
            val = fake_values.compute(node, mode)
            differs = difference(node.meta["val"], val) or fake_values.stride_difference(node.meta["val"], val)
        except fake_values.Unknown:
            continue
        except Exception as error:  # Whatever an operator says to arguments that don't fit it.
            rule = fake_values.does_not_work(node, error)
            yield Finding(FindingCode.STALE_VAL, where, rule, "Change its arguments or their values.", node)
            continue
        if differs:
            rule = f'its meta["val"] has {differs}, which the operator makes of its arguments.'
            yield Finding(FindingCode.STALE_VAL, where, rule, remedy, node)


def _missing_tangents(scan: Scan) -> Iterator[Finding]:
    """Floating-point outputs of a joint graph that depend on an input with a gradient, and have no tangent."""
    if scan.kind is not GraphKind.JOINT:
        return
    slots, entries = scan.slots, scan.slots.entries
    reached = {
        slots.placeholders[at]
        for number, grad in enumerate(scan.grads)
        if grad is not None and scan.inputs.kinds[number] is not InputKind.TANGENT
        for at in scan.inputs.positions[number]
        if any(entries[place] is not None for place in scan.outputs.positions[grad])
    }
    inputs = set(reached)
    for node in slots.output.graph.nodes:
        if not reached.isdisjoint(node.all_input_nodes):
            reached.add(node)
    rule = (
        "it depends on an input with a gradient, and has no tangent: it is detached, a view, or the tangent was lost."
    )
    for number in scan.outputs.of_kinds(_HAS_TANGENT):
        found = [(at, entries[at]) for at in scan.outputs.positions[number] if entries[at] in reached - inputs]
        floats = [at for at, entry in found if _is_float(entry)]
        if floats and number not in scan.tangents:
            yield slots.output_finding(floats[0], FindingCode.NO_TANGENT, rule, "If it was lost, add it as an input.")


def _is_float(entry: object) -> bool:
    val = entry.meta.get("val") if isinstance(entry, fx.Node) else None
    return isinstance(val, torch.Tensor) and (val.is_floating_point() or val.is_complex())


def _dead_inputs(scan: Scan) -> Iterator[Finding]:
    """Inputs that nothing reads."""
    remedy = "Leave it, as its place is part of the calling convention; or remove it by index.edit().remove(...)."
    for positions in scan.inputs.positions:
        if not any(scan.slots.placeholders[at].users for at in positions):
            yield scan.slots.input_finding(positions[0], FindingCode.DEAD_INPUT, "nothing reads it.", remedy)


def _around(finding: Finding) -> str:
    """The neighbourhood of a finding."""
    node = finding.node
    if node is None:
        return ""
    if node.op == "output":
        return _slots_around(node, finding.where)
    shown = [*node.all_input_nodes[:_NEAR], None, *list(node.users)[:_NEAR]]
    return "\n".join(f"-> {_line(node)}" if one is None else f"   {_line(one)}" for one in shown)


_NEAR = 3
"""How many neighbours to show on each side."""


def _line(node: fx.Node) -> str:
    """A node in one line."""
    if node.op == "output":
        return "output"
    described = f", {node.meta.get('desc')}" if node.op == "placeholder" else ""
    return f"{node.format_node()}{described}"


def _slots_around(output: fx.Node, where: str) -> str:
    """The entries of the output list next to the one that a finding is about."""
    returned, descs = output.args[0] if output.args else None, output.meta.get("desc")
    if not (where.startswith("output[") and isinstance(returned, (list, tuple))):
        return ""
    at = int(where[len("output[") : where.index("]")])
    told: Sequence[object] = descs if isinstance(descs, (list, tuple)) and len(descs) == len(returned) else ()
    return "\n".join(
        f"{'->' if i == at else '  '} output[{i}]: {returned[i]}" + (f", {told[i]}" if told else "")
        for i in range(max(at - _NEAR, 0), min(at + _NEAR + 1, len(returned)))
    )
