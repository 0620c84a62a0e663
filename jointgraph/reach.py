"""What each node depends on and what it reaches, for all nodes of a graph in one pass, as bit sets in ints.

A pass is linear in the number of nodes and edges. A union takes time by the highest bit: a nanosecond or so for a
hundred bits. Nodes with one input share the int of that input.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from torch import fx

from jointgraph import _torch as t
from jointgraph.exceptions import JointGraphError


def reached_from(
    nodes: Sequence[fx.Node], input_nodes: Iterable[Collection[fx.Node]], starts: Mapping[fx.Node, int]
) -> dict[fx.Node, int]:
    """For each node the union of the bits of all ``starts`` that it is, or depends on.

    Args:
        nodes: all nodes, in graph order.
        input_nodes: what each of them reads.
        starts: the bits of some nodes that read nothing.

    Raises:
        JointGraphError: if a node reads one that comes after it.
    """
    bits = dict(starts)
    try:
        for node, inputs in zip(nodes, input_nodes):
            count = len(inputs)
            if count == 1:
                (one,) = inputs
                bits[node] = bits[one]
            elif count == 2:
                one, other = inputs
                bits[node] = bits[one] | bits[other]
            elif count:
                union = 0
                for one in inputs:
                    union |= bits[one]
                bits[node] = union
            elif node not in bits:
                bits[node] = 0
    except KeyError as error:
        raise JointGraphError(
            f"{node} reads {error.args[0]}, which is not before it in the graph. Put the nodes in an order in which "
            "they can run (graph.lint() checks it), then ask."
        ) from error
    return bits


def reaching(nodes: Sequence[fx.Node], ends: Mapping[fx.Node, int]) -> dict[fx.Node, int]:
    """For each node the union of the bits of all ``ends`` that it is, or that depend on it."""
    bits = dict.fromkeys(nodes, 0)
    bits.update(ends)
    for node in reversed(nodes):
        own = bits[node]
        if own:
            for one in t.input_nodes(node):
                bits[one] |= own
    return bits


def bit_set(numbers: Iterable[int]) -> int:
    """The bit set of some numbers."""
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits


def numbers_in(bits: int) -> list[int]:
    """The numbers in a bit set, in order."""
    return [number for number, digit in enumerate(reversed(f"{bits:b}")) if digit == "1"]
