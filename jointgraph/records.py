"""The records that an index gives out: live views of a graph's values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import attrs
from torch import fx

from jointgraph import _torch as t
from jointgraph.descriptors import GradStatus, InputKind, OutputKind, SavedForBackwardsAOTInput
from jointgraph.leaves import Slot
from jointgraph.record import UNSURE, Record
from jointgraph.scan import NO_SLOT, Values
from jointgraph.slots import Slots


@attrs.define(eq=False, repr=False)
class Input(Record[t.AOTInput, InputKind, fx.Node]):
    """One input value of a graph: a parameter, a buffer, an argument of the user's; a tangent, a token, ..."""

    _node: fx.Node
    """The first placeholder."""
    _grad_slot: Output | None = None
    """The output that the gradient is in or would be, once asked for."""

    @property
    def node(self) -> fx.Node:
        """The placeholder. Constant time.

        A backward graph may take one leaf only of a tensor subclass, and this is then that one; ``leaves`` tells which.

        Raises:
            SubclassError: if there are several; ``nodes`` and ``leaves`` have them.
        """
        node = self._node
        if node.meta.get("desc") is self._slot and not node._erased:
            return node
        return cast(fx.Node, self._only_slot().value)

    @property
    def grad(self) -> Output | None:
        """The output that is this input's gradient; ``None`` where there is none (``grad_status`` says why)."""
        slot = self._grad_slot
        if slot is not None and self._holds():
            value = slot._peek()
            if value is not UNSURE:
                return None if value is None else slot
        slot = self._find_gradient()
        return slot if slot is not None and slot._has_value() else None

    @property
    def grad_status(self) -> GradStatus:
        """Whether the graph computes a gradient, was asked for one in vain, or wasn't asked."""
        slot = self._find_gradient()
        if slot is None:
            return GradStatus.NOT_REQUESTED
        return GradStatus.PRESENT if slot._has_value() else GradStatus.MISSING

    @property
    def mutation(self) -> Output | None:
        """The output with this input's new value, if the program mutates it and the graph returns that."""
        return self._linked(lambda: self._owner.output_record(self._owner.scan.mutations.get(self._number)))

    @property
    def tangent_of(self) -> Output | None:
        """For a tangent, its output; ``None`` where that is in the forward graph, and for other inputs."""
        return self._linked(lambda: self._owner.output_record(self._owner.scan.tangent_of.get(self._number)))

    @property
    def aliases(self) -> tuple[Input, ...]:
        """The other inputs on the same storage with the same geometry, as tied weights are, in placeholder order.

        Geometry is dtype, sizes, strides and offset. For a tensor subclass all its tensors must agree. Each question
        looks at the ``meta["val"]`` of all inputs; tangents alias nothing.
        """
        self._sync()
        records = map(self._owner.input_record, self._owner.alias_numbers(self._number))
        return tuple(record for record in records if record is not None)

    @property
    def is_used(self) -> bool:
        """Whether any node, the output included, reads it."""
        return any(node.users for node in self.nodes)

    @property
    def _values(self) -> Values[t.AOTInput, InputKind]:
        return self._owner.scan.inputs

    @property
    def _entries(self) -> Sequence[object]:
        return self._owner.scan.slots.placeholders

    def _peek(self) -> object:
        node = self._node
        if node.meta.get("desc") is not self._slot or node._erased:
            return UNSURE
        # An undescribed activation is known by its node's name.
        return UNSURE if self._slot is None and node.name != cast(SavedForBackwardsAOTInput, self._desc).name else node

    def _holds(self) -> bool:
        if self._slot is not NO_SLOT:
            return self._peek() is not UNSURE
        # A further leaf is seen by the count, leaves that trade places by their order.
        count = len(self._owner.scan.slots.placeholders)
        if not super()._holds() or t.placeholder_count(self._node.graph) != count:
            return False
        nodes = [cast(fx.Node, slot.value) for slot in self._known.values()]
        return nodes == sorted(nodes)

    def _still(self, slot: Slot) -> bool:
        node = cast(fx.Node, slot.value)
        return node.meta.get("desc") is slot.desc and not node._erased

    def _entry(self, slot: Slot) -> object:
        return slot.value

    def _verify(self) -> None:
        self._owner.verify_inputs()

    def _verify_linked(self) -> None:
        self._owner.verify_outputs()

    def _find_gradient(self) -> Output | None:
        """The output that the gradient is in, or would be."""
        slot = self._owner.output_record(self._owner.scan.grads[self._number]) if self._holds() else None
        if slot is None or not slot._holds():
            slot = self._linked(lambda: self._owner.output_record(self._owner.scan.grads[self._number]))
        self._grad_slot = slot
        return slot


@attrs.define(eq=False, repr=False)
class Output(Record[t.AOTOutput, OutputKind, fx.Node | None]):
    """One output value of a graph: a result of the user's, a gradient, a mutated input's new value, ..."""

    _position: int
    """The position of the first slot."""
    _table: Slots
    """The owner's last reading of the slots."""

    @property
    def value(self) -> object:
        """What is in the only slot of the output list: a node, ``None`` or a constant. Constant time.

        Raises:
            SubclassError: if there are several slots; ``leaves`` has them.
        """
        return self._only_slot().value if (value := self._peek()) is UNSURE else value

    @property
    def node(self) -> fx.Node | None:
        """The node in the only slot; ``None`` where the graph returns ``None`` or a constant. Constant time.

        Raises:
            SubclassError: if there are several slots; ``nodes`` and ``leaves`` have them.
        """
        value = self.value
        return value if isinstance(value, fx.Node) else None

    @property
    def position(self) -> int:
        """The index of the only slot in the output list. Constant time.

        Raises:
            SubclassError: if there are several slots; ``leaves`` has them.
        """
        return super().position if self._peek() is UNSURE else self._position

    @property
    def tangent(self) -> Input | None:
        """The input that is this output's tangent; ``None`` where it has none, or the backward graph takes it."""
        return self._linked(lambda: self._owner.input_record(self._owner.scan.tangents.get(self._number)))

    @property
    def grad_of(self) -> Input | None:
        """For a gradient, the input that it belongs to.

        ``None`` where that input is in the forward graph (``desc.grad_of`` names it), for a gradient slot that holds
        ``None``, and for other outputs.
        """
        if self._kind is OutputKind.GRAD and self._has_value():
            return self._linked(lambda: self._owner.input_record(self._owner.scan.grad_of.get(self._number)))
        return self._linked(lambda: None)

    @property
    def mutated_input(self) -> Input | None:
        """For the new value of a mutated input, that input; ``None`` for other outputs."""
        return self._linked(lambda: self._owner.input_record(self._owner.scan.mutated_input.get(self._number)))

    @property
    def _values(self) -> Values[t.AOTOutput, OutputKind]:
        return self._owner.scan.outputs

    @property
    def _entries(self) -> Sequence[object]:
        return self._owner.scan.slots.entries

    def _peek(self) -> object:
        table = self._table
        output = table.output
        args = output.args
        if args is table.output_args:
            descs: Any = output.meta.get("desc")
            position = self._position
            is_list = descs.__class__ is list or descs.__class__ is tuple
            if is_list and position < len(descs) and descs[position] is self._slot:
                return args[0][position]  # type: ignore[index]  # Its only argument is a list.
        return UNSURE

    def _holds(self) -> bool:
        return self._table.output.args is self._table.output_args and super()._holds()

    def _still(self, slot: Slot) -> bool:
        table, position = self._table, slot.position
        descs: Any = table.output.meta.get("desc")
        is_list = isinstance(descs, (list, tuple)) and position < len(descs)
        return is_list and descs[position] is slot.desc

    def _entry(self, slot: Slot) -> object:
        return self._entries[slot.position]

    def _verify(self) -> None:
        self._owner.verify_outputs()

    def _verify_linked(self) -> None:
        self._owner.verify_inputs()

    def _has_value(self) -> bool:
        """Whether any slot holds anything."""
        value = self._peek()
        if value is not UNSURE:
            return value is not None
        return any(slot.value is not None for slot in self._slots().values())
