"""A graph's interface: the one record of each of its values, kept true to the graph."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from operator import is_
from typing import Any, TypeVar, cast

import attrs
import torch
from torch import fx

from jointgraph import _torch as t
from jointgraph._torch import storage_and_geometry
from jointgraph.descriptors import INPUT_KINDS, OUTPUT_KINDS, InputKind, OutputKind
from jointgraph.exceptions import MalformedGraphError, StaleIndexError
from jointgraph.findings import Finding
from jointgraph.record import GONE
from jointgraph.records import Input, Output
from jointgraph.scan import NO_SLOT, Scan, Values, interpret
from jointgraph.slots import Slots, read_slots

T = TypeVar("T")


@attrs.frozen
class Filters:
    """What a subclass of the index overrides; ``None`` where it doesn't."""

    keeps_input: Callable[[t.AOTInput], bool] | None = None
    keeps_output: Callable[[t.AOTOutput], bool] | None = None
    input_kind: Callable[[t.AOTInput], InputKind] | None = None
    output_kind: Callable[[t.AOTOutput], OutputKind] | None = None


def _input_kind(desc: t.AOTInput) -> InputKind:
    return INPUT_KINDS[type(desc)]


def _output_kind(desc: t.AOTOutput) -> OutputKind:
    return OUTPUT_KINDS[type(desc)]


UNFILTERED = Filters()
"""What the index itself is."""


class Interface:
    """The records of one graph.

    It reads the placeholders and the output list when it is built, and again when they are found changed; a record then
    follows its descriptor to where that is now. Nothing of the interior is read.
    """

    def __init__(self, graph: fx.Graph, filters: Filters = UNFILTERED) -> None:
        """Read ``graph``.

        Raises:
            MalformedGraphError: if it breaks a rule.
        """
        self.graph = graph
        self.last_change = "nothing changed"
        self._filters = filters
        self._unfiltered = filters is UNFILTERED
        self.scan = self.read_graph()
        self._changes = 0
        """How often a change was found."""
        self._inputs: dict[int, Input | None] = {}
        self._outputs: dict[int, Output | None] = {}
        self._kept: dict[str, Any] = {}
        self._reading = False
        self.unsettled: set[fx.Node] = set()
        """Nodes that read a value that an edit changed, and whose own is to be computed anew."""
        self.watchers: list[Callable[[], str]] | None = None
        """In a reading() block, a list of its own: on leaving, each is asked what else changed, ``""`` for nothing."""

    def input_record(self, number: int | None) -> Input | None:
        """The record of an input value, if there is such a value and it is kept."""
        if number is None:
            return None
        if number not in self._inputs:
            self.inputs(self.scan.inputs.kinds[number])  # Who asks for one will ask for more of its kind.
        return self._inputs[number]

    def output_record(self, number: int | None) -> Output | None:
        """The record of an output value, if there is such a value and it is kept."""
        if number is None:
            return None
        if number not in self._outputs:
            self.outputs(self.scan.outputs.kinds[number])
        return self._outputs[number]

    def inputs(self, *kinds: InputKind) -> list[Input]:
        """The records of all kept inputs, or of those of some kinds, in placeholder order."""
        numbers = self.scan.inputs.of_kinds(kinds)
        missing = [number for number in numbers if number not in self._inputs]
        if missing:
            self._make_inputs(missing)
        return list(filter(None, map(self._inputs.__getitem__, numbers)))

    def outputs(self, *kinds: OutputKind) -> list[Output]:
        """The records of all kept outputs, or of those of some kinds, in output order."""
        numbers = self.scan.outputs.of_kinds(kinds)
        missing = [number for number in numbers if number not in self._outputs]
        if missing:
            self._make_outputs(missing)
        return list(filter(None, map(self._outputs.__getitem__, numbers)))

    def record(self, desc: t.AOTInput | t.AOTOutput) -> Input | Output | None:
        """The record of a base descriptor, if the graph has such a value and it is kept."""
        if isinstance(desc, t.AOTInput):
            return self.input_record(self.scan.inputs.number.get(desc))
        return self.output_record(self.scan.outputs.number.get(desc))

    def kind_of(self, desc: t.AOTInput | t.AOTOutput) -> InputKind | OutputKind:
        """The kind of a base descriptor, as the index tells it."""
        if isinstance(desc, t.AOTInput):
            return (self._filters.input_kind or _input_kind)(desc)
        return (self._filters.output_kind or _output_kind)(desc)

    def keeps(self, desc: t.AOTInput | t.AOTOutput) -> bool:
        """Whether the index has a record of such a value."""
        keeps = self._filters.keeps_input if isinstance(desc, t.AOTInput) else self._filters.keeps_output
        return keeps is None or keeps(desc)  # type: ignore[arg-type]  # Each is asked about its own side.

    @property
    def is_reading(self) -> bool:
        """Whether a ``reading()`` block runs."""
        return self._reading

    @property
    def is_plain(self) -> bool:
        """Whether every slot is a value of its own with a descriptor of torch's, and kept."""
        scan = self.scan
        if scan.inputs.has_leaves or scan.outputs.has_leaves or scan.inputs.of_kind(InputKind.SAVED):
            return False
        return self._unfiltered

    def input_slots(self) -> list[tuple[fx.Node, t.AOTInput]]:
        """Every placeholder of a kept input, with its descriptor, in order."""
        slots, values = self.scan.slots, self.scan.inputs
        if self._filters.keeps_input is None:
            return list(zip(slots.placeholders, slots.inputs))
        kept = sorted(position for record in self.inputs() for position in values.positions[record._number])
        return [(slots.placeholders[position], slots.inputs[position]) for position in kept]

    def output_slots(self) -> list[tuple[object, t.AOTOutput]]:
        """Every entry of a kept output, with its descriptor, in order."""
        slots, values = self.scan.slots, self.scan.outputs
        kept = sorted(position for record in self.outputs() for position in values.positions[record._number])
        return [(slots.entries[position], cast(t.AOTOutput, slots.outputs[position])) for position in kept]

    def leaves_out(self, desc: t.AOTInput | t.AOTOutput) -> bool:
        """Whether the graph has this value, and a subclass of the index doesn't keep it."""
        values = self.scan.inputs if isinstance(desc, t.AOTInput) else self.scan.outputs
        return desc in values.number and self.record(desc) is None

    def roles(self, node: fx.Node) -> tuple[Input | Output, ...]:
        """Every record that ``node`` fills a slot of, in slot order."""
        found: dict[Input | Output | None, None] = {}
        if node.op == "placeholder":
            record = self._input_of(node)
            if record is None or not record._holds():
                self.verify_inputs()
                record = self._input_of(node)
            found[record] = None
        self.verify_outputs()
        if self.scan.slots.output in node.users:
            numbers = self.kept("outputs by position", lambda: _by_position(self.scan.outputs))
            places = [at for at, entry in enumerate(self.scan.slots.entries) if entry is node]
            found.update(dict.fromkeys(self.output_record(numbers.get(at)) for at in places))
        return tuple(filter(None, found))

    def _input_of(self, node: fx.Node) -> Input | None:
        """The record of the input that a placeholder belonged to when the graph was read."""
        positions = self.kept("positions", lambda: dict(zip(self.scan.slots.placeholders, count())))
        numbers = self.kept("inputs by position", lambda: _by_position(self.scan.inputs))
        return self.input_record(numbers.get(positions.get(node, -1)))

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """What ``make`` returns, kept until the graph is read again."""
        if name not in self._kept:
            self._kept[name] = make()
        return cast(T, self._kept[name])

    def kept_for_entries(self, name: str, make: Callable[[], T]) -> T:
        """What ``make`` returns, kept until the graph is read again or an output entry is swapped for another."""
        return self._kept_for(self.scan.slots.output.args, name, make)

    def _kept_for(self, objects: Sequence[object], name: str, make: Callable[[], T]) -> T:
        """What ``make`` returns, kept until the graph is read again or one of some objects is another."""
        known = self._kept.get(name)
        if known is None or len(known[0]) != len(objects) or not all(map(is_, known[0], objects)):
            known = self._kept[name] = (objects, make())
        return cast(T, known[1])

    def verify(self) -> None:
        """Read the graph again if its calling convention changed."""
        self.verify_outputs()
        self.verify_inputs()

    def verify_inputs(self) -> None:
        """Read the graph again if its placeholders changed. Costs a look at each of them."""
        if self._reading:
            return
        change = self.scan.slots.inputs_changed()
        if change:
            self._read_again(change)

    def verify_outputs(self) -> None:
        """Read the graph again if its output list changed. Compares it at C speed."""
        if self._reading:
            return
        change = self.scan.slots.outputs_changed()
        if change:
            self._read_again(change)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Trust the last reading while the block runs; see `JointGraphIndex.reading`."""
        if self._reading:
            yield
            return
        self.verify()
        changes, self._reading = self._changes, True
        watchers = self.watchers = []
        try:
            yield
        finally:
            self._reading, self.watchers = False, None
        self.verify()
        said = [self.last_change] if self._changes != changes else [watcher() for watcher in watchers]
        if any(said):
            raise StaleIndexError(
                f"Inside a reading() block {' and '.join(filter(None, said))}: what was asked after that may be wrong."
            )

    def refresh(self) -> None:
        """Read the graph again.

        Raises:
            MalformedGraphError: if it breaks a rule; all records then stay as they were.
        """
        scan = self.read_graph()
        self._changes += 1
        self._adopt(scan, "the index was refreshed")

    def adopt_equal(self) -> None:
        """Take descriptors over that are equal to those that were read, and other objects."""
        if not self._reading:
            self._adopt(self.read_graph(), self.last_change)

    def read_graph(self) -> Scan:
        """A new reading of the graph as it is now, which is not made the interface's own.

        Raises:
            MalformedGraphError: if it breaks a rule.
        """
        return self.interpret(*read_slots(self.graph))

    def interpret(self, slots: Slots, faults: Sequence[Finding] = ()) -> Scan:
        """What slots mean to this index.

        Raises:
            MalformedGraphError: if they break a rule.
        """
        return interpret(slots, list(faults), self._filters.input_kind, self._filters.output_kind)

    def _read_again(self, change: str) -> None:
        try:
            scan = self.read_graph()
        except MalformedGraphError as error:
            raise StaleIndexError(
                f"{change}, and as the graph is now it can't be indexed: finish the edit first, then ask. {error}"
            ) from error
        self._changes += 1
        self._adopt(scan, change)

    def _adopt(self, scan: Scan, change: str) -> None:
        """Take a new reading, and have each record follow its descriptor into it."""
        self.scan, self.last_change = scan, change
        self._kept.clear()
        inputs, self._inputs = self._inputs, {}
        for record in filter(None, inputs.values()):
            number = scan.inputs.number.get(record._desc, GONE)
            record._number, record._slot, record._known, record._grad_slot = number, NO_SLOT, {}, None
            if number != GONE:
                record._slot, record._node = scan.input_slots[number], scan.input_nodes[number]
                self._inputs[number] = record
        outputs, self._outputs = self._outputs, {}
        for output in filter(None, outputs.values()):
            number = scan.outputs.number.get(output._desc, GONE)
            output._number, output._slot, output._known, output._table = number, NO_SLOT, {}, scan.slots
            if number != GONE:
                output._slot, output._position = scan.output_slots[number], scan.outputs.positions[number][0]
                self._outputs[number] = output

    def _make_inputs(self, numbers: Sequence[int]) -> None:
        """Make the records of input values, ``None`` where one isn't kept."""
        scan, values, keeps = self.scan, self.scan.inputs, self._filters.keeps_input
        for number in numbers:
            desc = values.descs[number]
            if keeps is None or keeps(desc):
                slot, node = scan.input_slots[number], scan.input_nodes[number]
                self._inputs[number] = Input(self, desc, values.kinds[number], number, slot, node)
            else:
                self._inputs[number] = None

    def _make_outputs(self, numbers: Sequence[int]) -> None:
        """Make the records of output values, ``None`` where one isn't kept."""
        scan, values, keeps = self.scan, self.scan.outputs, self._filters.keeps_output
        for number in numbers:
            desc = values.descs[number]
            if keeps is None or keeps(desc):
                slot, position = scan.output_slots[number], values.positions[number][0]
                self._outputs[number] = Output(self, desc, values.kinds[number], number, slot, position, scan.slots)
            else:
                self._outputs[number] = None

    def input_nodes(self) -> Iterator[tuple[Input, fx.Node]]:
        """Every kept input with each of its placeholders."""
        positions, nodes = self.scan.inputs.positions, self.scan.slots.placeholders
        return ((record, nodes[place]) for record in self.inputs() for place in positions[record._number])

    def output_nodes(self) -> Iterator[tuple[Output, fx.Node]]:
        """Every kept output with each node that it returns."""
        positions, entries = self.scan.outputs.positions, self.scan.slots.entries
        found = ((record, entries[place]) for record in self.outputs() for place in positions[record._number])
        return ((record, entry) for record, entry in found if isinstance(entry, fx.Node))

    def alias_numbers(self, number: int) -> Sequence[int]:
        """The other inputs with the storages and the geometry of one."""
        vals = [node.meta.get("val") for node in self.scan.slots.placeholders]
        return self._kept_for(vals, "aliases", lambda: _aliases(self.scan, vals)).get(number, ())


def _by_position(values: Values[Any, Any]) -> dict[int, int]:
    """The position of each described slot → the number of the value that it belongs to."""
    return {place: number for number, places in enumerate(values.positions) for place in places}


def _aliases(scan: Scan, vals: Sequence[object]) -> dict[int, list[int]]:
    """The inputs that share all their storages and geometries with others → those others.

    Tangents are left out: their fake tensors may be the outputs themselves, which they never are when the graph runs.
    """
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for number, (positions, kind) in enumerate(zip(scan.inputs.positions, scan.inputs.kinds)):
        if kind is InputKind.TANGENT:
            continue
        found = [vals[position] for position in positions]
        tensors = tuple(storage_and_geometry(val) for val in found if isinstance(val, torch.Tensor))
        if tensors:
            groups[tensors].append(number)
    return {
        one: [other for other in group if other != one] for group in groups.values() if len(group) > 1 for one in group
    }
