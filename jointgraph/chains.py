"""The straight line that goes on from an input, or leads up to an output, and why it ends."""

import enum
from collections.abc import Callable, Collection

import attrs
from torch import fx

from jointgraph import _torch as t

Through = Callable[[fx.Node], bool] | Collection[object]


class ChainStop(enum.Enum):
    """Why a chain ends."""

    SEVERAL_USERS = "several users"
    """More than one node reads the value: the last of the chain, or back from an output, the next one."""
    SEVERAL_INPUTS = "several inputs"
    """The next node reads more than one."""
    OUTPUT = "reached the output"
    """Nothing but the output node reads the value."""
    INPUT = "reached an input"
    """Back from an output: the value is an input."""
    NOT_ALLOWED = "op not allowed"
    """The next node is none to go through."""
    UNUSED = "unused"
    """Nothing reads the value."""
    NO_INPUTS = "no inputs"
    """Back from an output: the next node makes its value from nothing, as ``aten.zeros`` and a ``get_attr`` do."""
    NO_NODE = "no node"
    """The output is ``None`` or a constant."""


@attrs.frozen
class Chain:
    """The nodes with one input each that lie in line, and why there are no more of them."""

    nodes: tuple[fx.Node, ...]
    """In graph order: from the node that reads the input, or up to the one that is returned. Perhaps none."""
    stop: ChainStop
    """Why the chain ends."""
    at: tuple[fx.Node, ...]
    """Where it ends: forward, the several users; else the one node that the chain comes to and doesn't include.

    Empty where there is no such node.
    """


def chain_from(node: fx.Node, through: Through | None = None) -> Chain:
    """The chain from a placeholder forward. Each of its nodes but the last has one user."""
    nodes: list[fx.Node] = []
    while True:
        if len(node.users) != 1:
            stop = ChainStop.SEVERAL_USERS if node.users else ChainStop.UNUSED
            return Chain(tuple(nodes), stop, tuple(sorted(node.users)))
        (node,) = node.users
        if node.op == "output":
            return Chain(tuple(nodes), ChainStop.OUTPUT, (node,))
        if len(t.input_nodes(node)) > 1:
            return Chain(tuple(nodes), ChainStop.SEVERAL_INPUTS, (node,))
        if not _allowed(node, through):
            return Chain(tuple(nodes), ChainStop.NOT_ALLOWED, (node,))
        nodes.append(node)


def chain_to(node: fx.Node | None, through: Through | None = None) -> Chain:
    """The chain back from a node that the graph returns. Each of its nodes has one user."""
    nodes: list[fx.Node] = []

    def chain(stop: ChainStop, *at: fx.Node) -> Chain:
        return Chain(tuple(reversed(nodes)), stop, at)

    if node is None:
        return chain(ChainStop.NO_NODE)
    while True:
        if node.op == "placeholder":
            return chain(ChainStop.INPUT, node)
        if len(node.users) > 1:
            return chain(ChainStop.SEVERAL_USERS, node)
        inputs = t.input_nodes(node)
        if len(inputs) != 1:
            return chain(ChainStop.SEVERAL_INPUTS if inputs else ChainStop.NO_INPUTS, node)
        if not _allowed(node, through):
            return chain(ChainStop.NOT_ALLOWED, node)
        nodes.append(node)
        (node,) = inputs


def _allowed(node: fx.Node, through: Through | None) -> bool:
    """Whether a chain may go through a node; through each, unless it is said through which."""
    if through is None:
        return True
    if callable(through):
        return through(node)
    return node.target in through or (t.is_operator(node.target) and node.target.overloadpacket in through)
