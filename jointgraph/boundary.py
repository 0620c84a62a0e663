"""What backward keeps alive: the values that it reads from the forward side of a graph."""

import enum
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import attrs
import torch
from torch import fx

from jointgraph.descriptors import GraphKind, OutputKind
from jointgraph.interface import Interface
from jointgraph.leaves import val_of
from jointgraph.phases import Phases, entries_of

Bytes = int | torch.SymInt
Key = TypeVar("Key")


class CrossingRole(enum.Enum):
    """What a value is to the forward side, apart from backward reading it."""

    INPUT = "input"
    """An input: there without saving."""
    OUTPUT = "output"
    """An output of forward."""
    EXTRA = "extra"
    """Neither: it is kept for backward alone."""


class Crossing(NamedTuple):
    """One value that backward reads from the forward side."""

    node: fx.Node
    """The node that makes it, or the placeholder."""
    readers: tuple[fx.Node, ...]
    """The nodes of backward that read it, in graph order; the output node, where backward returns it as it is.

    Empty in a forward graph, whose backward graph has them.
    """
    role: CrossingRole

    @property
    def nbytes(self) -> Bytes | None:
        """The bytes of the tensor, a SymInt where its sizes are symbolic; ``None`` if it is no tensor."""
        val = val_of(self.node)
        return val.numel() * val.element_size() if isinstance(val, torch.Tensor) else None

    @property
    def dtype(self) -> torch.dtype | None:
        """The tensor's dtype; ``None`` if it is no tensor."""
        val = val_of(self.node)
        return val.dtype if isinstance(val, torch.Tensor) else None


@attrs.frozen(repr=False)
class Boundary:
    """The values that backward reads from the forward side, in graph order, as it was when asked for.

    Each counts with its own bytes, even if it shares a storage with another. Bytes are in ``meta["val"]``.
    """

    crossings: tuple[Crossing, ...]
    _modules: Callable[[Iterable[fx.Node]], Iterable[str | None]] = attrs.field(eq=False)
    """Tells the modules of nodes."""

    @property
    def nbytes(self) -> Bytes:
        """The bytes of all of them, inputs included."""
        return _totals([None for _ in self.crossings], self.crossings).get(None, 0)

    @property
    def by_module(self) -> Mapping[str | None, Bytes]:
        """The bytes by the module that makes the value: its path, as `Flow.module_of` tells it.

        ``None`` stands for inputs, and for all that the capture recorded no module of.
        """
        return _totals(self._modules(crossing.node for crossing in self.crossings), self.crossings)

    @property
    def by_dtype(self) -> Mapping[torch.dtype, Bytes]:
        """The bytes by dtype."""
        totals = _totals([crossing.dtype for crossing in self.crossings], self.crossings)
        return MappingProxyType({dtype: nbytes for dtype, nbytes in totals.items() if dtype is not None})

    def of_role(self, role: CrossingRole) -> "Boundary":
        """The part of it with this role. Of role ``EXTRA`` is what must be saved beside inputs and outputs."""
        return attrs.evolve(self, crossings=tuple(one for one in self.crossings if one.role is role))

    def __iter__(self) -> Iterator[Crossing]:
        """The crossings, in graph order."""
        return iter(self.crossings)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.crossings)

    def __repr__(self) -> str:
        """How many there are of each role, and their bytes."""
        counts = [(sum(one.role is role for one in self.crossings), role.value) for role in CrossingRole]
        shown = ", ".join(f"{count} {what}" for count, what in counts if count)
        return f"<Boundary: {shown or 'nothing'}; {self.nbytes} bytes>"


def _totals(keys: Iterable[Key], crossings: Iterable[Crossing]) -> Mapping[Key, Bytes]:
    """The bytes of the tensors among some crossings, added up by key."""
    totals: dict[Key, Bytes] = {}
    for key, crossing in zip(keys, crossings):
        nbytes = crossing.nbytes
        if nbytes is not None:
            totals[key] = totals.get(key, 0) + nbytes
    return MappingProxyType(totals)


def find_crossings(interface: Interface, phases: Phases) -> tuple[Crossing, ...]:
    """Find what crosses from forward to backward.

    In a joint graph that is what backward reads of what forward makes or takes in. A ``FREE`` node is run where it is
    read, so that what it reads crosses in its stead. In a forward graph it is what that saves, in a backward graph what
    that takes in and reads. What an attribute of the module holds (``get_attr``) is there on both sides.
    """
    scan = interface.scan
    if scan.kind is GraphKind.FORWARD:
        read: dict[fx.Node, Sequence[fx.Node]] = dict.fromkeys(entries_of(scan, scan.outputs.of_kind(_SAVED)), ())
    else:
        read = _read_values(interface, phases)
    crossings = []
    for node in sorted(read):
        readers = read[node]
        role = _INPUT if node.op == "placeholder" else _OUTPUT if node in phases.returned else _EXTRA
        crossings.append(Crossing(node, tuple(sorted(readers) if len(readers) > 1 else readers), role))
    return tuple(crossings)


_SAVED = OutputKind.SAVED
_INPUT, _OUTPUT, _EXTRA = CrossingRole  # Members are slow to look up in a class.


def _read_values(interface: Interface, phases: Phases) -> dict[fx.Node, Sequence[fx.Node]]:
    """The values of the forward side that backward reads, each with those of its users that backward runs.

    Of a node that returns no tensor, the parts that are taken out cross in its stead.
    """
    read: dict[fx.Node, Sequence[fx.Node]] = {}
    needed, forward = phases.needed, phases.forward
    to_do = [*(needed & forward), *_forward_inputs(interface, phases)]
    for node in to_do:  # It grows on the way.
        readers = [user for user in node.users if user in needed and user not in forward]
        for reader in readers:
            if reader.target is operator.getitem and not isinstance(val_of(node), torch.Tensor):
                to_do += (one for one in readers if one.target is operator.getitem)
                readers = [one for one in readers if one.target is not operator.getitem]
                break
        if node in phases.late_ends:
            readers.append(interface.scan.slots.output)
        if readers and node.op != "get_attr":
            read[node] = readers
    return read


def _forward_inputs(interface: Interface, phases: Phases) -> Iterator[fx.Node]:
    """The placeholders that backward needs and forward doesn't, without those that only backward takes."""
    for node in interface.scan.slots.placeholders:
        if node in phases.needed and node not in phases.forward and phases.sources[node] < phases.first_late:
            yield node
