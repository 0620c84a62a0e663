"""The slots of a graph's calling convention, as they stand: its placeholders, and the entries of its output list."""

from collections.abc import Sequence
from functools import cached_property
from typing import TypeGuard, cast

import attrs
from torch import fx

from jointgraph import _torch as t
from jointgraph.descriptors import OUTPUT_KINDS, OutputKind, SavedForBackwardsAOTInput
from jointgraph.exceptions import malformed
from jointgraph.findings import Finding, FindingCode

RECAPTURE = (
    "Index the graph as AOTAutograd made it, before what lost its descriptors (pickling, retracing with make_fx and "
    "fx.Transformer do), or bring them back with copy_descriptors(original, graph)."
)
"""The way out of a missing descriptor."""
_FLATTEN = "Return one flat list."
_DESCRIBE = 'Write its descriptor into the output node\'s meta["desc"], at the same position.'
_NESTS = (list, tuple, dict, slice)


@attrs.define(eq=False, slots=False)  # A cached property needs a __dict__.
class Slots:
    """Placeholders and output entries with their descriptors, as they were when read."""

    placeholders: list[fx.Node]
    inputs: list[t.AOTInput]
    """The descriptor of each placeholder, subclass layers included."""
    output: fx.Node
    """The output node."""
    output_args: object
    """``output.args``: FX makes a new object whenever the output list changes."""
    outputs: list[t.AOTOutput | None]
    """The descriptor of each output entry, subclass layers included."""

    @cached_property
    def undescribed(self) -> Sequence[int]:
        """The positions of the output entries without a descriptor, which are ``None``."""
        return [position for position, desc in enumerate(self.outputs) if desc is None]

    @property
    def entries(self) -> Sequence[object]:
        """What the graph returns now: nodes, ``None`` and constants."""
        return cast(Sequence[object], self.output.args[0])

    def inputs_changed(self) -> str:
        """How the placeholders differ from what was read, ``""`` if they don't. Reads each of them."""
        nodes = self.output.graph.find_nodes(op="placeholder")
        if nodes != self.placeholders:
            return "placeholders were added, removed or moved"
        try:
            if [node.meta["desc"] for node in nodes] == self.inputs:
                return ""
        except KeyError:
            pass  # It may be a saved activation.
        return "" if _descriptors(nodes) == self.inputs else "a placeholder has another descriptor"

    def outputs_changed(self) -> str:
        """How the output list differs from what was read, ``""`` if it doesn't.

        An entry that was swapped for another is no change. Compares two lists by identity at C speed: a microsecond for
        a thousand outputs.
        """
        if self.output._erased:
            return "the output node was erased"
        if self.output.args is not self.output_args:
            entries = self.output.args[0] if self.output.args else None
            if not _is_list(entries) or len(entries) != len(self.outputs):
                return "outputs were added or removed"
            if _nests(entries) or any(entries[at] is not None for at in self.undescribed):
                return "the output list was nested, or given a value where it has no descriptor"
            self.output_args = self.output.args
        descs = self.output.meta.get("desc")
        same = descs == self.outputs if isinstance(descs, list) else _is_list(descs) and [*descs] == self.outputs
        return "" if same else "the outputs have other descriptors"

    def drop_foreign(self) -> list[Finding]:
        """Take out what is no descriptor at all, so that the rest can be read, and say where it was."""
        faults: list[Finding] = []
        code = FindingCode.FOREIGN_DESCRIPTOR
        for position, desc in enumerate(self.inputs):
            if not isinstance(desc, t.AOTInput):
                self.inputs[position] = SavedForBackwardsAOTInput(self.placeholders[position].name)
                if desc is not None:
                    faults.append(self.input_finding(position, code, *_foreign(desc, "AOTInput")))
        for position, slot in enumerate(self.outputs):
            if slot is not None and not isinstance(slot, t.AOTOutput):
                self.outputs[position] = None
                faults.append(self.output_finding(position, code, *_foreign(slot, "AOTOutput")))
        return faults

    def input_finding(self, position: int, code: FindingCode, rule: str, remedy: str) -> Finding:
        """A finding about the placeholder at ``position``."""
        node = self.placeholders[position]
        return Finding(code, f"placeholder {node.name}", rule, remedy, node)

    def output_finding(self, position: int, code: FindingCode, rule: str, remedy: str) -> Finding:
        """A finding about the output entry at ``position``."""
        return Finding(code, _at(self.entries, position), rule, remedy, self.output)


@attrs.define(eq=False, slots=False)
class PlannedSlots(Slots):
    """Slots as a change would leave them, to be judged before it is made."""

    planned: Sequence[object]

    @property
    def entries(self) -> Sequence[object]:
        """What the graph would return."""
        return self.planned


def read_slots(graph: fx.Graph) -> tuple[Slots, list[Finding]]:
    """Read the slots of ``graph``, and what is wrong with each of them.

    Where there are faults, the slots hold what could be read: enough to look for more. That a placeholder has no
    descriptor is not judged here, as a backward graph may have such.

    Raises:
        MalformedGraphError: if there is no output list to read.
    """
    placeholders = graph.find_nodes(op="placeholder")
    try:
        inputs = [node.meta["desc"] for node in placeholders]
    except KeyError:
        inputs = _descriptors(placeholders)
    output = _find_output(graph)
    outputs, faults = _read_outputs(output)
    return Slots(placeholders, inputs, output, output.args, outputs), faults


def _descriptors(placeholders: Sequence[fx.Node]) -> list[t.AOTInput]:
    """The placeholders' descriptors; where there is none, the one that jointgraph files the placeholder under."""
    return [node.meta.get("desc") or SavedForBackwardsAOTInput(node.name) for node in placeholders]


def _find_output(graph: fx.Graph) -> fx.Node:
    nodes = graph.find_nodes(op="output")
    if len(nodes) != 1:
        rule = f"it has {len(nodes)} output nodes, and must have one."
        raise malformed([Finding(FindingCode.OUTPUT_LIST, "graph", rule, "Call graph.output([...]) once.")])
    return cast(fx.Node, nodes[0])


def _read_outputs(output: fx.Node) -> tuple[list[t.AOTOutput | None], list[Finding]]:
    """The descriptors of the output entries, those that can be read, and what is wrong with the entries."""
    returned, descs = output.args[0] if output.args else None, output.meta.get("desc")
    faults = []
    if not _is_list(returned):
        rule = f"it returns {returned}, and must return a list."
        faults.append(Finding(FindingCode.OUTPUT_LIST, "output", rule, _FLATTEN, output))
    entries = returned if _is_list(returned) else ()
    if _nests(entries):
        rule = "it is nested; each entry must be a node, a constant or None."
        nested = [position for position, entry in enumerate(entries) if isinstance(entry, _NESTS)]
        faults += [Finding(FindingCode.OUTPUT_LIST, _at(entries, at), rule, _FLATTEN, output) for at in nested]
    if not _is_list(descs):
        rule = 'its meta["desc"] is missing.' if descs is None else f'its meta["desc"] is {descs!r}, no list.'
        return [], [*faults, Finding(FindingCode.MISSING_DESCRIPTOR, "output", rule, RECAPTURE, output)]
    if not _is_list(returned):
        return [], faults
    if len(descs) != len(entries):
        return [], [*faults, _counts_differ(output, entries, descs)]
    rule = "it has a value and no descriptor."
    undescribed = [position for position, desc in enumerate(descs) if desc is None]
    faults += [
        Finding(FindingCode.MISSING_DESCRIPTOR, _at(entries, position), rule, _DESCRIBE, output)
        for position in undescribed
        if entries[position] is not None
    ]
    return cast(list[t.AOTOutput | None], list(descs)), faults


def _counts_differ(output: fx.Node, entries: Sequence[object], descs: Sequence[object]) -> Finding:
    """The fault of an output list whose descriptors can't be told apart, as there are more or fewer of them."""
    tokens = sum(OUTPUT_KINDS[type(desc)] is OutputKind.TOKEN for desc in descs)
    remedy = "Give each entry its own descriptor, None where there is nothing to describe."
    if tokens and len(descs) == len(entries) + tokens:
        remedy = (
            "The surplus are the effect tokens, whose outputs torch takes off without their descriptors when it "
            "partitions with unlift_effect_tokens: drop those descriptors."
        )
    rule = f"it has {len(entries)} entries and {len(descs)} descriptors."
    return Finding(FindingCode.SLOT_COUNT, "output", rule, remedy, output)


def _foreign(desc: object, base: str) -> tuple[str, str]:
    """The rule and the remedy for what is no descriptor."""
    return f'its meta["desc"] is {desc!r}, which is no {base}.', f"Put an {base} there."


def _at(entries: Sequence[object], position: int) -> str:
    """The output entry at ``position``, for messages."""
    return f"output[{position}] ({entries[position]})"


def _nests(entries: Sequence[object]) -> bool:
    """Whether an output list holds another one."""
    return any(issubclass(cls, _NESTS) for cls in set(map(type, entries)))


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, (list, tuple))
