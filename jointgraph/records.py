"""The records that an index gives out: live views of a graph's values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar, cast

import attrs
import torch
from torch import fx

from jointgraph import _torch as t
from jointgraph.descriptors import SUBCLASS_LAYERS, GradStatus, InputKind, OutputKind, leaf_path, name_of
from jointgraph.exceptions import StaleIndexError, SubclassError
from jointgraph.leaves import Leaf, Slot, val_of
from jointgraph.scan import Scan, Values
from jointgraph.slots import Slots

Desc = TypeVar("Desc", t.AOTInput, t.AOTOutput)
Kind = TypeVar("Kind", InputKind, OutputKind)
Entry = TypeVar("Entry")
Linked = TypeVar("Linked", bound="_Record[Any, Any, Any]")

GONE = -1
"""The number of a value that the graph has no longer."""
_UNSURE = object()
"""In place of an entry, when the output list has to be read to tell it."""


class Owner(Protocol):
    """What a record asks of the interface that gave it out."""

    scan: Scan
    """The last reading of the graph."""
    last_change: str
    """What made it read the graph again."""

    def input_record(self, number: int | None) -> Input | None:
        """The record of an input value, if there is such a value and it is kept."""

    def output_record(self, number: int | None) -> Output | None:
        """The record of an output value, if there is such a value and it is kept."""

    def verify_inputs(self) -> None:
        """Read the graph again if its placeholders changed, which numbers all records anew."""

    def verify_outputs(self) -> None:
        """Read the graph again if its output list changed, which numbers all records anew."""

    def alias_numbers(self, number: int) -> Sequence[int]:
        """The other inputs with the storages and the geometry of one."""


@attrs.define(eq=False, repr=False)
class _Record(ABC, Generic[Desc, Kind, Entry]):
    """What an input and an output have in common."""

    _owner: Owner
    _desc: Desc
    _kind: Kind
    _number: int
    """The value's number in the owner's scan; ``GONE`` when the graph has it no longer."""
    _slot: object
    """What stood in ``meta["desc"]`` of the only slot, or ``NO_SLOT``."""

    @property
    def desc(self) -> Desc:
        """The base descriptor: torch's, without subclass layers."""
        self._check()
        return self._desc

    @property
    def kind(self) -> Kind:
        """What the value is to the captured program."""
        self._check()
        return self._kind

    @property
    def name(self) -> str:
        """A parameter's or buffer's fully qualified name; a saved activation's node name; else ``desc.expr()``."""
        self._check()
        return name_of(self._desc)

    @property
    def position(self) -> int:
        """The index of the only slot, among the placeholders or in the output list. Reads all of these.

        Raises:
            SubclassError: if there are several slots; ``leaves`` has them.
        """
        return self._only_slot().position

    @property
    def leaves(self) -> Mapping[str, Leaf[Entry]]:
        """The slots by path, in slot order; ``{"": leaf}`` for a plain value."""
        return MappingProxyType({path: Leaf(self, path) for path in self._found()})

    @property
    def nodes(self) -> tuple[fx.Node, ...]:
        """The nodes in the slots, in slot order; a node that fills several is there as often."""
        return tuple(entry for entry in self._found().values() if isinstance(entry, fx.Node))

    @property
    @abstractmethod
    def node(self) -> Entry:
        """The node in the only slot."""

    @property
    def val(self) -> Any:
        """The node's ``meta["val"]``: a fake tensor, a SymInt, ...; ``None`` where there is none.

        Raises:
            SubclassError: if there are several slots; ``leaves`` has them.
        """
        return val_of(self.node)

    @property
    def nbytes(self) -> int | torch.SymInt | None:
        """The bytes of all tensors in the slots, a SymInt where sizes are symbolic; ``None`` if there is no tensor."""
        tensors = [val for val in (val_of(entry) for entry in self._found().values()) if isinstance(val, torch.Tensor)]
        return sum(val.numel() * val.element_size() for val in tensors) if tensors else None

    def __repr__(self) -> str:
        """Kind, name and nodes; or that the graph has the value no longer."""
        what = f"{type(self).__name__} {self._kind.value} {name_of(self._desc)!r}"
        try:
            found = self._found()
        except StaleIndexError:
            return f"<{what}: no longer in the graph>"
        shown = (f"{path}={entry}" if path else str(entry) for path, entry in found.items())
        return f"<{what}: {', '.join(shown)}>"

    @property
    @abstractmethod
    def _values(self) -> Values[Desc, Kind]:
        """The side of the scan that the value is on."""

    @property
    @abstractmethod
    def _entries(self) -> Sequence[object]:
        """What is in each slot of that side."""

    @abstractmethod
    def _peek(self) -> object:
        """What is in the only slot if that is still what it was, told in constant time; else ``_UNSURE``."""

    @abstractmethod
    def _holds(self) -> bool:
        """Whether the only slot is still what it was, told in constant time; ``False`` leaves it open."""

    @abstractmethod
    def _verify(self) -> None:
        """Have the owner read the graph again if this side of it changed."""

    @abstractmethod
    def _verify_linked(self) -> None:
        """The same for the other side, to which links lead."""

    def _check(self) -> None:
        """Make sure that the value is still in the graph."""
        if not self._holds():
            self._sync()

    def _sync(self) -> None:
        """Make sure that the scan is of the graph as it is now, and the value in it."""
        self._verify()
        if self._number == GONE:
            raise StaleIndexError(
                f"{self._desc} is not in the graph any more: {self._owner.last_change} since its record was given out."
            )

    def _linked(self, find: Callable[[], Linked | None]) -> Linked | None:
        """The record on the other side that ``find`` finds by this one's number.

        In constant time if it finds one with a single slot, which then answers for itself; else once more after that
        side was verified.
        """
        self._check()
        record = find()
        if record is None or not record._holds():
            self._verify_linked()
            self._check()
            record = find()
        return record

    def _found(self) -> dict[str, object]:
        """What is in the slots by path, in slot order. Constant time for a single slot."""
        entry = self._peek()
        if entry is not _UNSURE:
            return {leaf_path(self._slot) if isinstance(self._slot, SUBCLASS_LAYERS) else "": entry}
        return {path: slot.value for path, slot in self._slots().items()}

    def _slots(self) -> dict[str, Slot]:
        """The slots by path, in slot order."""
        self._sync()
        values, entries = self._values, self._entries
        found = ((i, cast(Desc, values.slots[i]), entries[i]) for i in values.positions[self._number])
        return {leaf_path(desc): Slot(position, desc, value) for position, desc, value in found}

    def _only_slot(self) -> Slot:
        slots = self._slots()
        if len(slots) != 1:
            raise SubclassError(
                f"{self._desc} is a tensor subclass with {len(slots)} leaves ({', '.join(map(repr, slots))}), "
                "and has no single node or position. Use .leaves or .nodes."
            )
        return next(iter(slots.values()))


@attrs.define(eq=False, repr=False)
class Input(_Record[t.AOTInput, InputKind, fx.Node]):
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
            if value is not _UNSURE:
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
        return self._node if self._holds() else _UNSURE

    def _holds(self) -> bool:
        node = self._node
        return node.meta.get("desc") is self._slot and not node._erased

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
class Output(_Record[t.AOTOutput, OutputKind, fx.Node | None]):
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
        return self._only_slot().value if (value := self._peek()) is _UNSURE else value

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
        return self._position if self._holds() else super().position

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

    def _holds(self) -> bool:
        return self._peek() is not _UNSURE

    def _peek(self) -> object:
        table = self._table
        output = table.output
        args = output.args
        if args is table.output_args:
            descs, position = output.meta.get("desc"), self._position
            if descs.__class__ is list and position < len(descs) and descs[position] is self._slot:
                return args[0][position]  # type: ignore[index]  # Its only argument is a list.
        return _UNSURE

    def _verify(self) -> None:
        self._owner.verify_outputs()

    def _verify_linked(self) -> None:
        self._owner.verify_inputs()

    def _has_value(self) -> bool:
        """Whether any slot holds anything."""
        value = self._peek()
        if value is not _UNSURE:
            return value is not None
        return any(slot.value is not None for slot in self._slots().values())
