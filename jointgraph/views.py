"""Read-only mappings that show the records of a graph as it is now."""

from collections.abc import Callable, Hashable, ItemsView, Iterable, Iterator, Mapping, ValuesView
from itertools import chain
from typing import Any, TypeVar

import attrs

from jointgraph.exceptions import UnknownNameError

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def _itself(record: Any) -> Any:
    return record


def _nothing(key: object) -> tuple[()]:
    return ()


@attrs.define(eq=False, repr=False)
class View(Mapping[Key, Value]):
    """One of an index's mappings.

    Looking up what is there takes constant time. Iterating, counting, and looking up what isn't there read all slots
    on one side of the graph. A loop goes through what was there when it began, and may edit the graph; the records
    themselves are live.
    """

    _title: str
    _records: Callable[[], Mapping[Key, Any]]
    """The records by key, from the last reading of the graph."""
    _verify: Callable[[], None]
    """Reads the graph again if it changed."""
    _missing: Callable[[object], UnknownNameError]
    """The error for a key that isn't there."""
    _shows: Callable[[Any], bool] | None = attrs.field(default=None, kw_only=True)
    """Which records to show; all, if ``None``."""
    _wrap: Callable[[Any], Value] = attrs.field(default=_itself, kw_only=True)
    """What to hand out for a record."""
    _also: Callable[[Any], Iterable[Key]] = attrs.field(default=_nothing, kw_only=True)
    """Other keys to look under for a key that isn't there."""

    def __getitem__(self, key: Key) -> Value:
        """The record of ``key``.

        Raises:
            UnknownNameError: if there is none; it offers close matches and says where the name may have gone.
        """
        found = self._find(key)
        if found is None:
            raise self._missing(key)
        return found

    def get(self, key: Key, default: Any = None) -> Any:
        """The record of ``key``, or ``default`` if there is none: without the work of explaining why."""
        found = self._find(key)
        return default if found is None else found

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
        shown = self._shown()
        wrapped = shown if self._wrap is _itself else {key: self._wrap(record) for key, record in shown.items()}
        return wrapped.items()

    def values(self) -> ValuesView[Value]:
        """The records, in slot order."""
        shown = self._shown()
        wrapped = shown if self._wrap is _itself else dict(enumerate(map(self._wrap, shown.values())))
        return wrapped.values()

    def __repr__(self) -> str:
        """The title and what is in it."""
        return f"{self._title}({dict(self)!r})"

    def _find(self, key: Any) -> Value | None:
        record = self._records().get(key)
        if record is None or not record._holds():
            self._verify()
            keys = chain([key], self._also(key))
            record = next(filter(None, map(self._records().get, keys)), None)
        shown = record is not None and (self._shows is None or self._shows(record))
        return self._wrap(record) if shown else None

    def _shown(self) -> Mapping[Key, Any]:
        """The records to show, by key."""
        self._verify()
        records, shows = self._records(), self._shows
        return records if shows is None else {key: record for key, record in records.items() if shows(record)}
