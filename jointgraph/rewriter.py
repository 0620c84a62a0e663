"""A graph's slots, rewritten: nodes, descriptors, and the pytree that a joint graph module is called with."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from torch import fx

from jointgraph import _torch as t
from jointgraph import fake_values
from jointgraph.exceptions import EditError, MalformedGraphError, listed
from jointgraph.fake_values import difference
from jointgraph.interface import Interface
from jointgraph.layout import is_backward
from jointgraph.leaves import Leaf
from jointgraph.new_nodes import NewNodes, build
from jointgraph.records import Input, Output
from jointgraph.scan import Scan
from jointgraph.slots import PlannedSlots

Value = Input | Output | Leaf[Any]
"""A value that has one slot, or one leaf of a tensor subclass."""
Slot = tuple[object, t.AOTOutput | None]
"""An output entry and its descriptor."""


class Rewriter:
    """Changes of one graph, each done whole. Nothing here judges whether the graph is then as it should be."""

    def __init__(self, interface: Interface) -> None:
        self.stale: set[fx.Node] = set()
        """Nodes that read a value that was changed."""
        self._interface = interface
        self._graph = interface.graph
        self._header_end: fx.Node | None = None
        """The last of the placeholders that the graph begins with, when last looked for."""

    @cached_property
    def mode(self) -> fake_values.Mode | None:
        """The fake mode of the graph's values."""
        return fake_values.mode_of(self._graph.nodes)

    def scan(self) -> Scan:
        """The reading of the graph as it is now."""
        self._interface.verify()
        return self._interface.scan

    def check_own(self, value: Value) -> None:
        """Refuse a record of another index.

        Raises:
            EditError: if it is one.
        """
        record = value._record if isinstance(value, Leaf) else value
        if cast(Input | Output, record)._owner is not self._interface:
            raise EditError(f"{record!r} is a record of another index: take it from the one that edits.")

    def placeholder(self, value: Value) -> fx.Node:
        """The only placeholder of an input, or that of a leaf."""
        self.check_own(value)
        return cast(fx.Node, value.node)

    def place(self, value: Value) -> int:
        """The position of the only slot of an output, or that of a leaf."""
        self.check_own(value)
        return value.position

    def behind(self, record: Input | Output) -> int:
        """The position behind all slots of a value."""
        self.check_own(record)
        leaves: Sequence[Leaf[Any]] = [*record.leaves.values()]
        return max(leaf.position for leaf in leaves) + 1

    def check_node(self, node: object) -> None:
        """Refuse what can't be returned.

        Raises:
            EditError: if it is no node of the graph, or the output node.
        """
        if node is None:
            return
        if not isinstance(node, fx.Node):
            raise EditError(f"{node!r} is no node: a graph returns nodes, or None.")
        if node._erased or node.graph is not self._graph or node.op == "output":
            what = (
                "was erased" if node._erased else "is the output node" if node.op == "output" else "is of another graph"
            )
            raise EditError(f"{node} {what}: return a node of this graph.")

    def wrap(self, inputs: Sequence[fx.Node], places: Sequence[int], fn: Callable[[fx.Node], fx.Node]) -> None:
        """Have ``fn`` build nodes on inputs and on returned values, and use these instead.

        Raises:
            EditError: if ``fn`` builds what can't stand there, or there is no node in an output's slot.
        """
        read = [node for node in inputs if _readers(node)]
        returned = [self._returned(place) for place in places]
        anchors = [self._after(node) for node in (*read, *returned)]  # All first, so that new nodes are in order.
        built: list[NewNodes] = []
        try:
            for node, anchor in zip((*read, *returned), anchors):
                built.append(build(fn, node, anchor, self.mode))
                if len(built) <= len(read):
                    _check_order(built[-1])
        except BaseException:
            for new in reversed(built):
                new.erase()
            raise
        for new in built[: len(read)]:
            self._route(new)
        if places:
            self.write({place: new.result for place, new in zip(places, built[len(read) :])})

    def write(self, entries: Mapping[int, object]) -> None:
        """Put other values into slots of the output list, which keep their descriptors."""
        output = self._graph.output_node()
        returned = cast(Sequence[Any], output.args[0])
        self._return([entries.get(position, old) for position, old in enumerate(returned)])

    def splice(self, position: int, count: int, slots: Sequence[Slot]) -> None:
        """Replace ``count`` slots of the output list from ``position`` on by others."""
        output = self._graph.output_node()
        values, descs = list(cast(Sequence[Any], output.args[0])), list(output.meta["desc"])
        changed = [desc for _, desc in slots] or descs[position : position + count]
        values[position : position + count] = [value for value, _ in slots]
        descs[position : position + count] = [desc for _, desc in slots]
        self._return(values)
        self.describe(descs)
        by, backward = len(slots) - count, all(map(is_backward, changed))
        if by:
            t.resize_call(self._graph, position, by, outputs=True, backward=backward)

    def describe(self, descs: Sequence[t.AOTOutput | None]) -> None:
        """Describe the output list by a new list, as copies of a graph share the old one."""
        output = self._graph.output_node()
        output.meta = {**output.meta, "desc": list(descs)}

    def check_plan(self, inputs: Sequence[tuple[fx.Node, t.AOTInput]], outputs: Sequence[Slot]) -> None:
        """Refuse slots that make no graph.

        Raises:
            EditError: if they break a rule.
        """
        nodes, descs = [node for node, _ in inputs], [desc for _, desc in inputs]
        entries, described = [entry for entry, _ in outputs], [desc for _, desc in outputs]
        output = self._graph.output_node()
        try:
            self._interface.interpret(PlannedSlots(nodes, descs, output, output.args, described, entries))
        except MalformedGraphError as error:
            raise EditError(f"The graph would break a rule {listed(error.findings)}\nIt is as it was.") from error

    def slots(self) -> tuple[list[tuple[fx.Node, t.AOTInput]], list[Slot]]:
        """The placeholders and the output entries with their descriptors, as they are now."""
        slots = self.scan().slots
        return list(zip(slots.placeholders, slots.inputs)), list(zip(slots.entries, slots.outputs))

    def insert_placeholder(self, position: int, desc: t.AOTInput, val: Any) -> None:
        """Add a placeholder at ``position``, named as torch's partitioners expect it."""
        nodes, backward = self._interface.scan.slots.placeholders, is_backward(desc)
        before = (
            nodes[position] if position < len(nodes) else nodes[-1].next if nodes else next(iter(self._graph.nodes))
        )
        with self._graph.inserting_before(before):
            node = self._graph.placeholder("tangents_1" if backward else "primals_1")
        node.target = node.name
        node.meta = {"desc": desc, "val": val}
        t.resize_call(self._graph, position, 1, outputs=False, backward=backward)

    def erase_placeholders(self, nodes: Sequence[fx.Node]) -> None:
        """Take placeholders away that nothing reads."""
        placeholders = self._interface.scan.slots.placeholders
        for position in sorted(map(placeholders.index, nodes), reverse=True):
            self._graph.erase_node(placeholders[position])
            t.resize_call(self._graph, position, -1, outputs=False, backward=False)

    def refresh_values(self) -> None:
        """Compute anew the values that follow from changed ones."""
        stale, self.stale = self.stale, set()
        fake_values.recompute(stale, self.mode)

    def _returned(self, place: int) -> fx.Node:
        entry = cast(Sequence[Any], self._graph.output_node().args[0])[place]
        if not isinstance(entry, fx.Node):
            raise EditError(f"output[{place}] holds {entry}: there is no node to wrap.")
        return entry

    def _return(self, values: Sequence[Any]) -> None:
        output = self._graph.output_node()
        output.args = (tuple(values) if isinstance(output.args[0], tuple) else list(values),)

    def _after(self, node: fx.Node) -> fx.Node:
        """The node before which to build on one: the next one, but behind the placeholders that a graph begins with."""
        if node.op != "placeholder":
            return node.next
        end = self._header_end
        if end is None or end._erased or end.op != "placeholder" or end.next.op == "placeholder":
            end = node
            while end.next.op == "placeholder":
                end = end.next
            self._header_end = end
        return node.next if end < node else end.next

    def _route(self, new: NewNodes) -> None:
        """Have what reads a value read the new nodes' result."""
        readers = {*_readers(new.of)}.difference(new.nodes)
        if difference(new.result.meta.get("val"), new.of.meta.get("val")):
            self.stale |= readers
        new.of.replace_all_uses_with(new.result, delete_user_cb=readers.__contains__)


def is_output(value: Value) -> bool:
    """Whether a value is an output, or a leaf of one."""
    return isinstance(value._record if isinstance(value, Leaf) else value, Output)


def _readers(node: fx.Node) -> list[fx.Node]:
    """The nodes that read one, those aside that write to it."""
    return [user for user in node.users if not any(written is node for written in t.mutated_arguments(user))]


def _check_order(new: NewNodes) -> None:
    """Refuse new nodes that come after what is to read them."""
    readers = {*_readers(new.of)}.difference(new.nodes)
    early = min(readers, default=new.result)
    if early < new.result:
        raise EditError(
            f"{early} reads {new.of}, and comes before {new.result.prev}, which the new nodes read: it can't read them."
        )
