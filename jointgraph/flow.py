"""`Flow`: what the interior of a graph says, from dataflow."""

from collections.abc import Iterable
from typing import Any, TypeVar, cast

from torch import fx

from jointgraph import _torch as t
from jointgraph.boundary import Boundary, find_crossings
from jointgraph.chains import Chain, Through, chain_from, chain_to
from jointgraph.exceptions import JointGraphError
from jointgraph.interface import Interface
from jointgraph.interior import Interior
from jointgraph.leaves import Leaf
from jointgraph.phases import Phase, Phases
from jointgraph.provenance import Twins, find_twins, modules_of
from jointgraph.reach import bit_set, numbers_in, reaching
from jointgraph.records import Input, Output
from jointgraph.uses import find_uses

Record = TypeVar("Record", Input, Output)


class Flow:
    """What dataflow says of the nodes of one graph: which side they are on, what they depend on and what they reach.

    What needs a look at all nodes is found out when first asked for, and kept. Before each answer the graph is compared
    with what that was found out from, and if any node was added, removed, moved or given other arguments, it is found
    out again: an answer is never older than the graph. The comparison takes about half the time of a walk that reads
    ``all_input_nodes`` of every node. A loop that asks about many nodes and edits nothing should run inside
    ``index.reading()``, which compares once on the way in and once on the way out. ``chain``, ``uses``, ``first_use``
    and ``last_use`` read just the nodes in question, and nothing is kept.

    Dataflow is what the graph's edges say. A value that is written in place flows to the users of the node that writes
    it, and not to those of the node that made it.
    """

    def __init__(self, interface: Interface) -> None:
        self._interface = interface
        self._interior = Interior(interface)

    # Sides.

    def phase(self, node: fx.Node) -> Phase:
        """Whether a node is forward, backward or free, from dataflow alone.

        The placeholder of an input that nothing in forward needs is free. A forward or inference graph has no backward
        nodes; a backward graph has no forward ones, and what it runs without a tangent is free. The output node is
        backward if anything that it returns depends on a tangent.

        Raises:
            JointGraphError: if the node is not in the graph; of this or any question, if nodes are out of order.
        """
        return self._interior.phases_with(node).of(node)

    @property
    def forward_nodes(self) -> tuple[fx.Node, ...]:
        """The nodes that a forward output needs, or an effect of forward, placeholders included; in graph order."""
        return self._in_phase(Phase.FORWARD)

    @property
    def backward_nodes(self) -> tuple[fx.Node, ...]:
        """The nodes that depend on a tangent, tangents included and the output node left out; in graph order."""
        return self._in_phase(Phase.BACKWARD)

    @property
    def free_nodes(self) -> tuple[fx.Node, ...]:
        """The nodes that are neither, in graph order."""
        return self._in_phase(Phase.FREE)

    @property
    def boundary(self) -> Boundary:
        """The values that backward reads from the forward side: what it keeps alive, and how many bytes.

        A value that forward makes or takes in crosses if backward runs a node that reads it, be that node ``BACKWARD``
        or ``FREE``. Of an operator with several results, those results cross that are read. In a forward graph these
        are the saved outputs; in a backward graph the inputs that it gets from forward, and reads. Found anew at each
        call, from the phases.
        """
        interior = self._interior
        return Boundary(find_crossings(self._interface, interior.phases), self._modules_of)

    # What a node depends on, and what it reaches.

    def sources(self, node: fx.Node) -> tuple[Input, ...]:
        """The inputs that a node depends on, in slot order. A placeholder depends on its own input.

        Raises:
            JointGraphError: if the node is not in the graph.
        """
        phases = self._interior.phases_with(node)
        numbers = sorted(phases.input_numbers[bit] for bit in numbers_in(phases.sources[node]))
        return tuple(filter(None, map(self._interface.input_record, numbers)))

    def sinks(self, node: fx.Node) -> tuple[Output, ...]:
        """The outputs that depend on a node, in slot order. A node that is returned reaches its own output.

        Raises:
            JointGraphError: if the node is not in the graph.
        """
        self._interior.phases_with(node)
        bits = self._sinks()[node]
        count = len(self._interface.scan.outputs.descs)
        return tuple(filter(None, (self._interface.output_record(n) for n in numbers_in(bits) if n < count)))

    def derived_from(self, inputs: Input | Iterable[Input]) -> tuple[fx.Node, ...]:
        """The nodes that depend on some inputs and on no others, without the placeholders; in graph order.

        Constants may take part, but what depends on no input at all is not derived from any.

        Raises:
            JointGraphError: for a record of another index, or of an output.
            StaleIndexError: for a record of an input that the graph has no longer.
        """
        numbers = self._numbers(inputs, Input, "derived_from() takes inputs")
        phases = self._interior.phases
        allowed = bit_set(bit for bit, number in enumerate(phases.input_numbers) if number in numbers)
        return tuple(
            node
            for node in phases.nodes
            if phases.sources[node] and phases.sources[node] | allowed == allowed and not _is_slot(node)
        )

    def only_feeding(self, outputs: Output | Iterable[Output]) -> tuple[fx.Node, ...]:
        """The nodes that some outputs depend on, and no others; in graph order.

        An effect that depends on a node, such as a write to an input, is a use as well: such a node isn't one of them.
        A use that ends nowhere is none.

        Raises:
            JointGraphError: for a record of another index, or of an input.
            StaleIndexError: for a record of an output that the graph has no longer.
        """
        numbers = self._numbers(outputs, Output, "only_feeding() takes outputs")
        allowed = bit_set(numbers)
        return tuple(node for node, bits in self._sinks().items() if bits and bits | allowed == allowed)

    # Lines and uses.

    def chain(self, record: Input | Output | Leaf[Any], through: Through | None = None) -> Chain:
        """The nodes with one input in line with a value: from an input forward, from an output back; and why they end.

        From an input, its only user, the only user of that, and so on, as long as each reads nothing else. From an
        output, the node that is returned, what that alone reads, and so on, as long as nothing else reads it.

        Args:
            record: an input or an output, or one leaf of a tensor subclass.
            through: the nodes to go through, as their targets (an operator's packet stands for all its overloads) or as
                a function of a node; all nodes, if ``None``.

        Raises:
            SubclassError: if a record has several nodes; ``record.leaves`` has them one by one.
        """
        self._check_owner(record)
        node = record.node
        if isinstance(record.desc, t.AOTInput) and node is not None:
            return chain_from(node, through)
        return chain_to(node, through)

    def uses(self, record: Input | Output | Leaf[Any]) -> tuple[fx.Node, ...]:
        """The nodes that use a value, in graph order.

        Seen through views: the users of a view use the value, and the view itself doesn't. Whatever writes to the value
        uses it, and so does the output node, if it returns it. Which operators return views is in their schemas.
        """
        self._check_owner(record)
        return tuple(find_uses([record.node] if isinstance(record, Leaf) else record.nodes))

    def first_use(self, record: Input | Output | Leaf[Any]) -> fx.Node | None:
        """The first node that uses a value, as ``uses`` has it; ``None`` if none does."""
        return next(iter(self.uses(record)), None)

    def last_use(self, record: Input | Output | Leaf[Any]) -> fx.Node | None:
        """The last node that uses a value, as ``uses`` has it; ``None`` if none does."""
        return next(reversed(self.uses(record)), None)

    # What the capture recorded.

    def module_of(self, node: fx.Node) -> str | None:
        """The path of the module that a node was traced in: ``"layers.0.wq"``, ``""`` for the captured module itself.

        For a node of backward, that of the forward call it belongs to. ``None`` where the capture recorded none: in
        every graph of a module that was neither captured by Dynamo nor by ``torch.export``; for inputs, sums of
        gradients, and nodes that a pass added; and, if Dynamo captured it, for what the module itself does, outside its
        submodules. Of modules that a captured function finds elsewhere, the path starts with where that is, as
        ``"G['model'].layers.0"``.

        Metadata is read anew at each call, of all nodes for a node of backward; once in a ``reading()`` block.

        Raises:
            JointGraphError: if the node is not in the graph.
        """
        self._interior.phases_with(node)
        (path,) = self._modules_of([node])
        return path

    def twin_of(self, node: fx.Node) -> fx.Node | None:
        """The first node of the other side that belongs to the same call of forward, by ``seq_nr``.

        Several nodes of backward may have the same twin. ``None`` where the capture recorded no number, or nothing on
        the other side has it; for sums of gradients, which belong to no call; and in a graph that has one side only.

        Metadata is read anew at each call, of all nodes; once in a ``reading()`` block.

        Raises:
            JointGraphError: if the node is not in the graph.
        """
        self._interior.phases_with(node)
        return self._twins().of(node)

    def __repr__(self) -> str:
        """How many nodes there are of each phase."""
        counts = (f"{len(self._in_phase(phase))} {phase.value}" for phase in Phase)
        return f"<Flow: {', '.join(counts)}>"

    def _in_phase(self, phase: Phase) -> tuple[fx.Node, ...]:
        return self._interior.kept(phase.value, lambda phases: phases.in_phase(phase))

    def _sinks(self) -> dict[fx.Node, int]:
        """For each node the bit set of the outputs that depend on it, with one bit more for effects."""
        return self._interior.kept("sinks", self._find_sinks)

    def _find_sinks(self, phases: Phases) -> dict[fx.Node, int]:
        outputs, entries = self._interface.scan.outputs, self._interface.scan.slots.entries
        ends = dict.fromkeys(phases.effects, 1 << len(outputs.descs))
        for number, places in enumerate(outputs.positions):
            for entry in (entries[place] for place in places):
                if isinstance(entry, fx.Node):
                    ends[entry] = ends.get(entry, 0) | 1 << number
        return reaching(phases.nodes, ends)

    def _twins(self) -> Twins:
        return self._interior.read("twins", lambda phases: find_twins(phases.nodes))

    def _modules_of(self, nodes: Iterable[fx.Node]) -> list[str | None]:
        return modules_of(nodes, self._twins())

    def _numbers(self, records: Record | Iterable[Record], kind: type[Record], rule: str) -> set[int]:
        """The numbers of records of one kind, which must be of this graph."""
        given = [records] if isinstance(records, (Input, Output)) else list(records)
        for record in given:
            if not isinstance(record, kind):
                raise JointGraphError(f"{rule}, not {record!r}. Take records out of the index.")
            self._check_owner(record)
        self._interface.verify()
        for record in given:
            record._check()
        return {record._number for record in given}

    def _check_owner(self, record: Input | Output | Leaf[Any]) -> None:
        value = cast(Input | Output, record._record) if isinstance(record, Leaf) else record
        if value._owner is not self._interface:
            raise JointGraphError(f"{record!r} is of another index. Take the record of that value out of this one.")


def _is_slot(node: fx.Node) -> bool:
    """Whether a node computes nothing."""
    return node.op in {"placeholder", "output"}
