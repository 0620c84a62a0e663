"""The interior of a graph, and what was found out about it, kept for as long as the graph stays as it is.

Nothing in FX tells that an interior changed: there is no version counter, and hooks miss most edits. But FX makes new
objects of a node's arguments at every change of them. So the list of nodes and the list of these objects are kept, and
compared before each answer: linear in the number of nodes, and about half of what reading ``all_input_nodes`` of each
takes.
"""

from collections.abc import Callable, Sequence
from itertools import compress, repeat
from operator import is_
from typing import Any, TypeVar, cast

import attrs
from torch import fx

from jointgraph import _torch as t
from jointgraph.exceptions import JointGraphError, StaleIndexError
from jointgraph.interface import Interface
from jointgraph.phases import Phases, effects, find_phases
from jointgraph.scan import Scan

T = TypeVar("T")


@attrs.frozen(eq=False)
class _State:
    """What tells whether an interior is still what it was."""

    scan: Scan
    nodes: Sequence[fx.Node]
    args: Sequence[object]
    """The arguments of each node."""
    without_args: Sequence[fx.Node]
    """The nodes whose ``args`` are ``()``, which is one object for all."""
    kwargs: Sequence[object]
    """The keyword arguments of these."""

    def same_as(self, other: "_State") -> bool:
        """Whether nothing happened between two states. Arguments are compared as objects only."""
        return (
            self.scan is other.scan
            and self.nodes == other.nodes
            and all(map(is_, self.args, other.args))
            and all(map(is_, self.kwargs, other.kwargs))
        )


class Interior:
    """The nodes of a graph, with their phases and whatever else was found out."""

    def __init__(self, interface: Interface) -> None:
        self.interface = interface
        self._state: _State | None = None
        self._phases: Phases | None = None
        self._kept: dict[str, Any] = {}
        self._read: dict[str, Any] = {}
        self._block: object = None
        """The interface's list of watchers, if this is on it."""

    @property
    def phases(self) -> Phases:
        """The phases of the nodes, and the sources that they follow from."""
        self._verify()
        return cast(Phases, self._phases)

    def kept(self, name: str, make: Callable[[Phases], T]) -> T:
        """What ``make`` finds out from dataflow, kept until that changes."""
        phases = self.phases
        if name not in self._kept:
            self._kept[name] = make(phases)
        return cast(T, self._kept[name])

    def read(self, name: str, make: Callable[[Phases], T]) -> T:
        """What ``make`` reads off metadata: anew at each call, once in a reading() block."""
        phases = self.phases
        if self.interface.watchers is None:
            return make(phases)
        if name not in self._read:
            self._read[name] = make(phases)
        return cast(T, self._read[name])

    def phases_with(self, node: fx.Node) -> Phases:
        """The phases, with a node among them.

        Raises:
            JointGraphError: if it is of another graph, or was erased.
            StaleIndexError: if it was added inside a reading() block after the first question there.
        """
        if node.graph is not self.interface.graph:
            raise JointGraphError(
                f"{node} is a node of another graph. A copied or partitioned graph has its own nodes: take one of them."
            )
        if node._erased:
            raise JointGraphError(f"{node} was erased from the graph. Ask about a node that is in it.")
        phases = self.phases
        if node not in phases.sources:
            raise StaleIndexError(f"{node} was added inside a reading() block, which is to ask only: ask after it.")
        return phases

    def _verify(self) -> None:
        """Find the phases if that has not been done for the graph as it is, and drop all else that is not of it."""
        block = self.interface.watchers
        if block is not None and self._block is block:
            return
        self.interface.verify()
        state = self._look()
        if not self._is_of(state):
            self._phases, self._state = None, None  # An error leaves nothing old behind.
            self._phases = find_phases(self.interface, state.nodes)
            self._state = state
            self._kept.clear()
        self._block = block
        self._read.clear()
        if block is not None:
            block.append(self._change)

    def _look(self) -> _State:
        nodes = list(self.interface.graph.nodes)
        args = list(map(t.node_args, nodes))
        without = list(compress(nodes, map(is_, args, repeat(()))))
        return _State(self.interface.scan, nodes, args, without, list(map(t.node_kwargs, without)))

    def _is_of(self, state: _State) -> bool:
        """Whether what is kept is of this state."""
        if self._state is None or self._phases is None or not state.same_as(self._state):
            return False
        return effects(self._phases.dead) == self._phases.effects  # A node's target can change, too.

    def _change(self) -> str:
        """Whether the interior changed since it was last verified, in words."""
        return "" if self._is_of(self._look()) else "nodes were added, removed, moved or given other arguments"
