"""Read-only mappings that show the records of a graph as it is now."""

from collections.abc import Callable, Hashable, ItemsView, Iterator, Mapping, ValuesView
from typing import Any, TypeVar

import attrs

from jointgraph.exceptions import UnknownNameError
from jointgraph.records import Input, Output

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", covariant=True)


@attrs.frozen(eq=False, repr=False)
class View(Mapping[Key, Value]):
    """One of an index's mappings.

    Looking up what is there takes constant time. Iterating, counting, and looking up what isn't there read all slots on
    one side of the graph. What ``values()`` and ``items()`` go through is fixed when they are called, so a loop over them
    may edit the graph; the records themselves are live.
    """

    _title: str
    _records: Callable[[], Mapping[Key, Any]]
    """The records by key, from the last reading of the graph."""
    _shows: Callable[[Any], bool] | None
    """Which records to show; all, if ``None``."""
    _wrap: Callable[[Any], Value]
    """What to hand out for a record."""
    _verify: Callable[[], None]
    """Reads the graph again if it changed."""
    _missing: Callable[[object], UnknownNameError]
    """The error for a key that isn't there."""

    def __getitem__(self, key: Key) -> Value:
        """The record of ``key``.

        Raises:
            UnknownNameError: if there is none; it offers close matches and says where the name may have gone.
        """
        found = self._find(key)
        if found is None:
            raise self._missing(key)
        return found

    def __contains__(self, key: object) -> bool:
        """Whether ``key`` has a record."""
        return self._find(key) is not None

    def __iter__(self) -> Iterator[Key]:
        """The keys, in slot order."""
        return iter(list(self._shown()))

    def __len__(self) -> int:
        """How many there are."""
        return len(self._shown())

    def items(self) -> ItemsView[Key, Value]:
        """Keys and records, in slot order."""
        return {key: self._wrap(record) for key, record in self._shown().items()}.items()

    def values(self) -> ValuesView[Value]:
        """The records, in slot order."""
        return {key: self._wrap(record) for key, record in self._shown().items()}.values()

    def __repr__(self) -> str:
        """The title and what is in it."""
        return f"{self._title}({dict(self)!r})"

    def _find(self, key: object) -> Value | None:
        record: Input | Output | None = self._records().get(key)  # type: ignore[call-overload]  # any key may be asked
        if record is None or not record._holds():
            self._verify()
            record = self._records().get(key)  # type: ignore[call-overload]
        shown = record is not None and (self._shows is None or self._shows(record))
        return self._wrap(record) if shown else None

    def _shown(self) -> Mapping[Key, Any]:
        """The records to show, by key."""
        self._verify()
        records, shows = self._records(), self._shows
        return records if shows is None else {key: record for key, record in records.items() if shows(record)}
