"""The leaves of a value: its slots, one by one."""

from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar, cast

import attrs
from torch import fx

from jointgraph import _torch as t
from jointgraph.exceptions import StaleIndexError

Entry = TypeVar("Entry")


@attrs.frozen
class Slot:
    """What is found in one slot."""

    position: int
    desc: t.AOTInput | t.AOTOutput
    """The slot's own descriptor, subclass layers included."""
    value: object
    """A node, ``None`` or a constant."""


class HasSlots(Protocol):
    """A record, as its leaves see it."""

    def _slots(self) -> Mapping[str, Slot]:
        """The record's slots in slot order, as the graph is now."""

    def _found(self) -> Mapping[str, object]:
        """What is in them."""

    def _descs(self) -> Mapping[str, t.AOTInput | t.AOTOutput]:
        """Their own descriptors."""


@attrs.frozen(repr=False)
class Leaf(Generic[Entry]):
    """One slot of a value, shown as it is now.

    A plain value has one leaf. A tensor subclass has one for each inner tensor, and under dynamic shapes for sizes and
    strides.
    """

    _record: HasSlots
    path: str
    """Which part of it: ``"a"``, ``"a.b"``, ``"size(0)"``; ``""`` for a plain value."""

    @property
    def desc(self) -> t.AOTInput | t.AOTOutput:
        """The slot's own descriptor, subclass layers included."""
        try:
            return self._record._descs()[self.path]
        except KeyError:
            raise self._gone() from None

    @property
    def position(self) -> int:
        """The slot's index, among the placeholders or in the output list."""
        return self._slot().position

    @property
    def value(self) -> object:
        """What is in the slot: a node; in an output slot perhaps ``None`` or a constant."""
        try:
            return self._record._found()[self.path]
        except KeyError:
            raise self._gone() from None

    @property
    def node(self) -> Entry:
        """The node in the slot; ``None`` where an output slot holds no node."""
        value = self.value
        return cast(Entry, value if isinstance(value, fx.Node) else None)

    @property
    def val(self) -> Any:
        """The node's ``meta["val"]``: a fake tensor, a SymInt, ...; ``None`` where there is none."""
        return val_of(self.value)

    def __repr__(self) -> str:
        """The record and the path."""
        return f"<Leaf {self.path!r} of {self._record!r}>"

    def _slot(self) -> Slot:
        try:
            return self._record._slots()[self.path]
        except KeyError:
            raise self._gone() from None

    def _gone(self) -> StaleIndexError:
        return StaleIndexError(f"{self._record!r} has no leaf {self.path!r} any more.")


def val_of(entry: object) -> Any:
    """The ``meta["val"]`` of what is in a slot."""
    return entry.meta.get("val") if isinstance(entry, fx.Node) else None
