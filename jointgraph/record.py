"""What the records of inputs and of outputs have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

import attrs
import torch
from torch import fx

from jointgraph import _torch as t
from jointgraph.descriptors import SUBCLASS_LAYERS, InputKind, OutputKind, leaf_path, name_of
from jointgraph.exceptions import StaleIndexError, SubclassError
from jointgraph.leaves import Leaf, Slot, val_of
from jointgraph.owner import Owner
from jointgraph.scan import NO_SLOT, Values

Desc = TypeVar("Desc", t.AOTInput, t.AOTOutput)
Kind = TypeVar("Kind", InputKind, OutputKind)
Entry = TypeVar("Entry")
Linked = TypeVar("Linked", bound="Record[Any, Any, Any]")

GONE = -1
"""The number of a value that the graph has no longer."""
UNSURE = object()
"""In place of an entry, when all slots have to be read to tell it."""


@attrs.define(eq=False, repr=False)
class Record(ABC, Generic[Desc, Kind, Entry]):
    """What an input and an output have in common."""

    _owner: Owner
    _desc: Desc
    _kind: Kind
    _number: int
    """The value's number in the owner's scan; ``GONE`` when the graph has it no longer."""
    _slot: object
    """What stood in ``meta["desc"]`` of the only slot, or ``NO_SLOT``."""
    _known: Mapping[str, Slot] = attrs.field(factory=dict, init=False)
    """Where there are several slots, these as they were when last looked for."""

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
    def _entry(self, slot: Slot) -> object:
        """What is now in a slot that is still the value's."""

    @abstractmethod
    def _peek(self) -> object:
        """What is in the only slot if that is still what it was, told in constant time; else ``UNSURE``."""

    @abstractmethod
    def _still(self, slot: Slot) -> bool:
        """Whether a slot that was found is still the value's, told in constant time; ``False`` leaves it open."""

    def _holds(self) -> bool:
        """Whether all slots are still the value's, told in constant time; ``False`` leaves it open."""
        if self._slot is not NO_SLOT:
            return self._peek() is not UNSURE
        if not self._known and self._number != GONE:
            self._known = self._read_slots()
        return bool(self._known) and all(map(self._still, self._known.values()))

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
        if self._number != GONE and self._slot is not NO_SLOT and self._peek() is UNSURE:
            self._owner.adopt_equal()
        if self._number == GONE:
            raise StaleIndexError(
                f"{self._desc} is not in the graph any more: {self._owner.last_change} since its record was given out."
            )
        if self._slot is NO_SLOT:
            self._known = self._read_slots()

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
        if entry is not UNSURE:
            return {leaf_path(self._slot) if isinstance(self._slot, SUBCLASS_LAYERS) else "": entry}
        slots = self._known if self._slot is NO_SLOT and self._holds() else self._slots()
        return {path: self._entry(slot) for path, slot in slots.items()}

    def _descs(self) -> dict[str, Desc]:
        """The slots' own descriptors by path, in slot order. Constant time."""
        slots = self._known if self._slot is NO_SLOT and self._holds() else self._slots()
        return {path: cast(Desc, slot.desc) for path, slot in slots.items()}

    def _slots(self) -> dict[str, Slot]:
        """The slots by path, in slot order."""
        self._sync()
        return dict(self._known) if self._slot is NO_SLOT else self._read_slots()

    def _read_slots(self) -> dict[str, Slot]:
        """The slots by path as the scan has them."""
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
