"""Nodes that a pass's own function builds: placed where they may stand, given values and tags, or taken out again."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
from torch import fx

from jointgraph import fake_values
from jointgraph.exceptions import EditError

_PASSED_ON = ("stack_trace", "seq_nr", "nn_module_stack", "fwd_nn_module_stack", "partitioner_tag", "autograd_backward")
"""What new nodes have from the node whose value they take on, as torch's partitioners and profilers read it."""
_TAG, _BACKWARD = "partitioner_tag", "is_backward"


@attrs.frozen(eq=False)
class NewNodes:
    """Nodes built on the value of another."""

    of: fx.Node
    nodes: Sequence[fx.Node]
    """The new nodes in graph order."""
    result: fx.Node
    """The one that stands for the value from now on."""

    def erase(self) -> None:
        """Take them out again."""
        _erase(self.nodes)


def build(fn: Callable[[fx.Node], fx.Node], of: fx.Node, anchor: fx.Node, mode: fake_values.Mode | None) -> NewNodes:
    """Have ``fn`` build nodes on ``of``, before ``anchor`` or where all that they read is there.

    Raises:
        EditError: if it built none, or changed the graph in another way, or an operator refuses its arguments. What it
            built is taken out again, as it is if ``fn`` itself raises.
    """
    graph, before, count = of.graph, anchor.prev, len(of.graph.nodes)
    try:
        with graph.inserting_before(anchor):
            result = fn(of)
    except BaseException:
        _erase(_between(before, anchor))
        raise
    nodes = _between(before, anchor)
    try:
        _check_result(of, result, nodes, len(graph.nodes) - count)
        _place(nodes)
        for node in nodes:
            _describe(node, of, mode)
    except BaseException:
        _erase(nodes)
        raise
    return NewNodes(of, nodes, result)


def _between(before: fx.Node, after: fx.Node) -> list[fx.Node]:
    nodes = []
    node = before.next
    while node is not after:
        nodes.append(node)
        node = node.next
    return nodes


def _erase(nodes: Sequence[fx.Node]) -> None:
    for node in reversed(nodes):
        node.graph.erase_node(node)


def _check_result(of: fx.Node, result: object, nodes: Sequence[fx.Node], added: int) -> None:
    if added != len(nodes):
        raise EditError(
            f"The function that was to build on {of} added or erased nodes elsewhere in the graph, and those changes "
            "stand: it may only add nodes, by node.graph.call_function(...), where the graph's insert point is."
        )
    if result not in nodes:
        raise EditError(
            f"The function that was to build on {of} returned {result}, which it didn't build. Return a node that it "
            "added to node.graph."
        )


def _place(nodes: Sequence[fx.Node]) -> None:
    """Move new nodes behind the last of what they read, if that comes later."""
    own = set(nodes)
    read = [one for node in nodes for one in node.all_input_nodes if one not in own]
    last = max(read, default=nodes[0].prev)
    if nodes[0] < last:
        for node in nodes:
            last.append(node)
            last = node


def _describe(node: fx.Node, of: fx.Node, mode: fake_values.Mode | None) -> None:
    """Give a new node its value and its tags, unless its builder did."""
    passed_on: dict[str, Any] = {key: of.meta[key] for key in _PASSED_ON if key in of.meta}
    if any(one.meta.get(_TAG) == _BACKWARD for one in node.all_input_nodes):
        passed_on[_TAG] = _BACKWARD
    node.meta = {**passed_on, **node.meta}
    if "val" in node.meta:
        return
    try:
        node.meta["val"] = fake_values.compute(node, mode)
    except fake_values.Unknown:
        pass  # Then it has none, which index.check() reports.
    except Exception as error:
        raise EditError(fake_values.does_not_work(node, error)) from error
