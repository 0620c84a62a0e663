"""Which part of a joint graph each node belongs to, from dataflow alone: no name, tag or order is looked at."""

import enum
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any

import attrs
from torch import fx

from jointgraph import _torch as t
from jointgraph.descriptors import OF_BACKWARD_INPUTS, OF_BACKWARD_OUTPUTS, GraphKind, InputKind, OutputKind
from jointgraph.interface import Interface
from jointgraph.reach import reached_from
from jointgraph.scan import Kind, Scan, Values


class Phase(enum.Enum):
    """When a node runs."""

    FORWARD = "forward"
    """A forward output needs it, or an effect that depends on no tangent does, such as a write to an input."""
    BACKWARD = "backward"
    """It depends on a tangent, or on another input that only backward takes: a token or a seed of its own."""
    FREE = "free"
    """Neither, so that either side can run it. Most often only backward needs it; it is dead if nothing does."""


@attrs.frozen(eq=False)
class Phases:
    """The phases of a graph's nodes, and what they follow from."""

    nodes: Sequence[fx.Node]
    """All nodes, in graph order."""
    forward: set[fx.Node]
    """What forward outputs and the effects of forward need, and these themselves."""
    needed: set[fx.Node]
    """What backward outputs and the effects of backward need, and these themselves.

    Of forward, that is all that the others read, but not always what that needs in its turn.
    """
    dead: Sequence[fx.Node]
    """The nodes from which no output is reached."""
    effects: Sequence[fx.Node]
    """Those of them that do something all the same."""
    sources: Mapping[fx.Node, int]
    """For each node the bit set of the inputs that it depends on. Inputs that only backward takes have the top bits."""
    input_numbers: Sequence[int]
    """For each of these bits, the number of the input in the scan."""
    first_late: int
    """The bit set of the first input that only backward takes: no set without such inputs is as large."""
    late_ends: AbstractSet[fx.Node]
    """The nodes that are backward outputs."""
    returned: AbstractSet[fx.Node]
    """The nodes that are forward outputs, but for what a forward graph saves."""

    def of(self, node: fx.Node) -> Phase:
        """The phase of a node."""
        if node in self.forward:
            return Phase.FORWARD
        return Phase.BACKWARD if self.sources[node] >= self.first_late else Phase.FREE

    def in_phase(self, phase: Phase) -> tuple[fx.Node, ...]:
        """The nodes of a phase in graph order, without the output node."""
        of = self.of
        return tuple(node for node in self.nodes if of(node) is phase and node.op != "output")


def find_phases(interface: Interface, nodes: Sequence[fx.Node]) -> Phases:
    """Tell the phases of all nodes, which must be those of the interface's graph now. One pass down, one up.

    A forward graph and an inference graph have no backward outputs, a backward graph has no forward ones.

    Raises:
        JointGraphError: if a node reads one that comes after it.
    """
    scan = interface.scan
    input_nodes = list(map(t.input_nodes, nodes))
    late_inputs = _numbers(scan.inputs, InputKind.TANGENT, OF_BACKWARD_INPUTS)
    numbers = [number for number in range(len(scan.inputs.descs)) if number not in late_inputs] + sorted(late_inputs)
    first_late = 1 << (len(numbers) - len(late_inputs))
    sources = reached_from(nodes, input_nodes, _starts(scan, numbers))

    has_forward = scan.kind is not GraphKind.BACKWARD
    late_outputs = _numbers(scan.outputs, OutputKind.GRAD, OF_BACKWARD_OUTPUTS)
    late_ends = entries_of(scan, late_outputs if has_forward else range(len(scan.outputs.descs)))
    forward = entries_of(scan, {*range(len(scan.outputs.descs))} - late_outputs) if has_forward else set()
    misplaced = {node for node in forward if sources[node] >= first_late}
    forward -= misplaced
    late_ends |= misplaced
    returned = forward - entries_of(scan, scan.outputs.of_kind(OutputKind.SAVED))

    needed, dead = set(late_ends), []
    for node, inputs in zip(reversed(nodes), reversed(input_nodes)):
        if node in forward:
            for one in inputs:
                forward.add(one)  # Faster than update(), as most nodes have one or two.
        elif node in needed:
            for one in inputs:
                needed.add(one)
        else:
            dead.append(node)
    found = effects(dead)
    _grow(forward, [node for node in found if has_forward and sources[node] < first_late])
    _grow(needed, [node for node in found if node not in forward])
    if has_forward and sources[scan.slots.output] < first_late:
        forward.add(scan.slots.output)
    return Phases(nodes, forward, needed, dead, found, sources, numbers, first_late, late_ends, returned)


def _numbers(values: Values[Any, Kind], kind: Kind, classes: Iterable[type]) -> set[int]:
    """The numbers of the values that are of a kind, or whose descriptors are of some classes."""
    return {*values.of_kind(kind), *chain.from_iterable(map(values.of_class, classes))}


def _starts(scan: Scan, numbers: Sequence[int]) -> dict[fx.Node, int]:
    """For each placeholder the bit set of its input, the numbers of the inputs being in the order of the bits."""
    placeholders, positions = scan.slots.placeholders, scan.inputs.positions
    return {placeholders[place]: 1 << bit for bit, number in enumerate(numbers) for place in positions[number]}


def entries_of(scan: Scan, numbers: Iterable[int]) -> set[fx.Node]:
    """The nodes that are in the slots of some outputs."""
    entries, positions = scan.slots.entries, scan.outputs.positions
    found = (entries[place] for number in numbers for place in positions[number])
    return {entry for entry in found if isinstance(entry, fx.Node)}


def _grow(reached: set[fx.Node], nodes: Sequence[fx.Node]) -> None:
    """Add nodes to a set, and all that they need."""
    reached.update(nodes)
    to_do = [*nodes]
    while to_do:
        new = t.input_nodes(to_do.pop()).keys() - reached
        reached |= new
        to_do += new


def effects(dead: Iterable[fx.Node]) -> list[fx.Node]:
    """Those of some nodes that reach no output which do something all the same: write to an input, assert, print.

    They are what FX's dead code elimination leaves. Drawing random numbers is no effect.
    """
    found = []
    known: dict[object, bool] = {}  # An operator alone tells whether its calls have an effect.
    for node in dead:
        if node.op in {"placeholder", "output"}:
            continue
        has_effect = known.get(node.target)
        if has_effect is None:
            has_effect = node.is_impure(impure_random=False)
            if t.is_operator(node.target):
                known[node.target] = has_effect
        if has_effect:
            found.append(node)
    return found
