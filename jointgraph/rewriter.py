"""A graph's slots, rewritten: nodes, descriptors, and the pytree that a joint graph module is called with."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import attrs
from torch import fx

from jointgraph import _torch as t
from jointgraph import fake_values
from jointgraph.descriptors import OutputKind
from jointgraph.exceptions import EditError, MalformedGraphError, listed
from jointgraph.interface import Interface
from jointgraph.layout import is_backward
from jointgraph.leaves import Leaf
from jointgraph.new_nodes import NewNodes, build
from jointgraph.records import Input, Output
from jointgraph.scan import Scan
from jointgraph.slots import PlannedSlots

Value = Input | Output | Leaf[Any]
"""A value that has one slot, or one leaf of a tensor subclass."""


@attrs.define(eq=False)
class InputSlot:
    """A placeholder as a step would have it."""

    node: fx.Node | None
    """The placeholder; ``None`` for one to be added."""
    desc: t.AOTInput
    val: Any = None
    """The ``meta["val"]`` of one to be added."""


@attrs.define(eq=False)
class OutputSlot:
    """An entry of the output list as a step would have it."""

    entry: object
    desc: t.AOTOutput | None
    origin: int | None = None
    """Its position in the list as it is; ``None`` for one to be added."""


class Rewriter:
    """Changes of one graph, each done whole. Only slots are judged beforehand; not what the graph then computes."""

    def __init__(self, interface: Interface) -> None:
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
        if not isinstance(record, (Input, Output)):
            raise EditError(f"{record!r} is no Input, Output or Leaf: take one from the index.")
        if record._owner is not self._interface:
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
        what = "was erased" if node._erased else "is of another graph" if node.graph is not self._graph else ""
        what = "is the output node" if node.op == "output" and not what else what
        if what:
            raise EditError(f"{node} {what}: return a node of this graph.")

    # Nodes.

    def wrap(self, inputs: Sequence[fx.Node], places: Sequence[int], fn: Callable[[fx.Node], fx.Node]) -> None:
        """Have ``fn`` build nodes on inputs and on returned values, and use these instead.

        Raises:
            EditError: if ``fn`` builds what can't stand there, or there is no node in an output's slot.
        """
        read = [node for node in inputs if self._readers(node)]
        returned = [self._returned(place) for place in places]
        anchors = [*map(self._before_readers, read), *map(self._behind_value, returned, places)]
        built: list[NewNodes] = []
        try:
            for node, anchor in zip((*read, *returned), anchors):
                built.append(build(fn, node, anchor, self.mode))
                if len(built) <= len(read):
                    self._check_order(built[-1])
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
        self._return([entries.get(position, old) for position, old in enumerate(self._entries())])

    def set_val(self, node: fx.Node, val: Any) -> None:
        """Give an input another value, from which others follow."""
        fake_values.set_val(node, val)
        self._interface.unsettled.update(node.users)

    def refresh_values(self) -> None:
        """Compute anew the values that follow from changed ones.

        Raises:
            EditError: if an operator does not work on them. All values then stay as they were, to be computed yet.
        """
        fake_values.recompute(self._interface.unsettled, self.mode)
        self._interface.unsettled.clear()

    def _entries(self) -> Sequence[Any]:
        return cast(Sequence[Any], self._graph.output_node().args[0])

    def _return(self, values: Sequence[Any]) -> None:
        output = self._graph.output_node()
        output.args = (tuple(values) if isinstance(output.args[0], tuple) else list(values),)

    def _returned(self, place: int) -> fx.Node:
        entry = self._entries()[place]
        if not isinstance(entry, fx.Node):
            raise EditError(f"output[{place}] holds {entry}: there is no node to wrap.")
        return entry

    def _readers(self, node: fx.Node) -> list[fx.Node]:
        """The nodes that read one; not those that write to it, nor a forward graph's output list that but saves it."""
        saves = self._saves(node)
        return [
            user
            for user in node.users
            if not any(written is node for written in t.mutated_arguments(user)) and not (saves and user.op == "output")
        ]

    def _saves(self, node: fx.Node) -> bool:
        """Whether a graph returns a node only to save it for backward, which knows it by its name."""
        if not any(user.op == "output" for user in node.users):
            return False
        scan = self.scan()
        saved = {at for number in scan.outputs.of_kind(OutputKind.SAVED) for at in scan.outputs.positions[number]}
        return all(at in saved for at, entry in enumerate(self._entries()) if entry is node)

    def _after_header(self, node: fx.Node) -> fx.Node:
        """The first node behind the placeholders that the graph begins with, or behind a later one."""
        end = self._header_end
        if end is None or end._erased or end.op != "placeholder" or end.next.op == "placeholder":
            end = node
            while end.next.op == "placeholder":
                end = end.next
            self._header_end = end
        return node.next if end < node else end.next

    def _before_readers(self, node: fx.Node) -> fx.Node:
        """The node before which to build on an input.

        Torch's default partitioner takes all nodes up to the last of forward's for forward's: what is built on an input
        of backward stands with its readers.
        """
        return min(self._readers(node)) if is_backward(self._desc(node)) else self._after_header(node)

    def _behind_value(self, node: fx.Node, place: int) -> fx.Node:
        """The node before which to build on a returned value."""
        if node.op != "placeholder":
            return node.next
        backward = is_backward(self._desc(node)) or is_backward(self._graph.output_node().meta["desc"][place])
        return self._graph.output_node() if backward else self._after_header(node)

    def _desc(self, node: fx.Node) -> t.AOTInput:
        """The descriptor of a placeholder; a saved activation has none, and is an input like forward's."""
        return cast(t.AOTInput, node.meta.get("desc") or t.DummyAOTInput(0))

    def _check_order(self, new: NewNodes) -> None:
        """Refuse new nodes that come after what is to read them."""
        readers = {*self._readers(new.of)}.difference(new.nodes)
        early = min(readers, default=new.result)
        if early < new.result:
            late = max(one for node in new.nodes for one in node.all_input_nodes if one not in new.nodes)
            raise EditError(
                f"{early} reads {new.of}, and comes before {late}, which the new nodes read: it can't read them."
            )

    def _route(self, new: NewNodes) -> None:
        """Have what reads a value read the new nodes' result."""
        readers = {*self._readers(new.of)}.difference(new.nodes)
        if fake_values.is_other(new.result.meta.get("val"), new.of.meta.get("val")):
            self._interface.unsettled |= readers
        new.of.replace_all_uses_with(new.result, delete_user_cb=readers.__contains__)

    # Slots.

    def slots(self) -> tuple[list[InputSlot], list[OutputSlot]]:
        """The slots as they are now."""
        slots = self.scan().slots
        inputs = [InputSlot(node, desc) for node, desc in zip(slots.placeholders, slots.inputs)]
        return inputs, [OutputSlot(*pair, at) for at, pair in enumerate(zip(slots.entries, slots.outputs))]

    def adopt(self, inputs: Sequence[InputSlot], outputs: Sequence[OutputSlot]) -> None:
        """Have the graph take and return these.

        Raises:
            EditError: if that would make no graph; it is then as it was.
        """
        self._check_plan(inputs, outputs)
        slots = self._interface.scan.slots
        at = {node: position for position, node in enumerate(slots.placeholders)}
        origins = [None if slot.node is None else at[slot.node] for slot in inputs]
        t.resize_call(self._graph, *_moves(origins, [slot.desc for slot in inputs]), outputs=False)
        t.resize_call(self._graph, *_moves([s.origin for s in outputs], [s.desc for s in outputs]), outputs=True)
        for node in {*slots.placeholders}.difference(slot.node for slot in inputs if slot.node is not None):
            self._graph.erase_node(node)
        before = next(iter(self._graph.nodes))
        for slot in inputs:
            if slot.node is None:
                with self._graph.inserting_before(before):
                    slot.node = self._graph.placeholder("tangents_1" if is_backward(slot.desc) else "primals_1")
                slot.node.target = slot.node.name
                slot.node.meta = {"desc": slot.desc, "val": slot.val}
            elif "desc" in slot.node.meta and slot.node.meta["desc"] != slot.desc:
                slot.node.meta = {**slot.node.meta, "desc": slot.desc}
            before = slot.node.next
        self._return([slot.entry for slot in outputs])
        output = self._graph.output_node()
        output.meta = {**output.meta, "desc": [slot.desc for slot in outputs]}  # Copies of a graph share the old list.

    def _check_plan(self, inputs: Sequence[InputSlot], outputs: Sequence[OutputSlot]) -> None:
        stand_in = fx.Graph().placeholder("new_input")
        nodes, descs = [slot.node or stand_in for slot in inputs], [slot.desc for slot in inputs]
        entries, described = [slot.entry for slot in outputs], [slot.desc for slot in outputs]
        output = self._graph.output_node()
        try:
            self._interface.interpret(PlannedSlots(nodes, descs, output, output.args, described, entries))
        except MalformedGraphError as error:
            raise EditError(f"The graph would break a rule {listed(error.findings)}\nIt is as it was.") from error


def _moves(origins: Sequence[int | None], descs: Sequence[Any]) -> tuple[list[int | None], list[bool]]:
    """Where each slot comes from, and whether it is backward's."""
    return list(origins), [is_backward(desc) for desc in descs]


def is_output(value: Value) -> bool:
    """Whether a value is an output, or a leaf of one."""
    return isinstance(value._record if isinstance(value, Leaf) else value, Output)
