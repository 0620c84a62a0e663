"""Nodes that a pass's own function builds: put where they may stand, given values and tags, or taken out again."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
from torch import fx

from jointgraph import _torch as t
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
    """The new nodes in the order in which they were built."""
    result: fx.Node
    """The one that stands for the value from now on."""

    def erase(self) -> None:
        """Take them out again."""
        _erase(self.nodes, self.of)


def build(fn: Callable[[fx.Node], fx.Node], of: fx.Node, anchor: fx.Node, mode: fake_values.Mode | None) -> NewNodes:
    """Have ``fn`` build nodes on ``of``, and put them before ``anchor``, or behind the last of what they read.

    Raises:
        EditError: if it built none, or something else than nodes on top of what there is, or an operator refuses its
            arguments. What it built is taken out again, as it is if ``fn`` itself raises.
    """
    graph, count, readers = of.graph, len(of.graph.nodes), {*of.users}
    nodes: list[fx.Node] = []
    try:
        with _recorded(graph, nodes), graph.inserting_before(anchor):
            result = fn(of)
        _check_graph(of, readers, nodes, len(graph.nodes) - count)
        _check_nodes(of, result, nodes)
        _place(nodes, anchor)
        for node in nodes:
            _describe(node, of, mode)
    except BaseException:
        _erase(nodes, of)
        raise
    return NewNodes(of, nodes, result)


@contextmanager
def _recorded(graph: fx.Graph, nodes: list[fx.Node]) -> Iterator[None]:
    """Lists the nodes that are added to a graph, wherever that is."""
    create, patched = graph.create_node, vars(graph).get("create_node")

    def record(*args: Any, **kwargs: Any) -> fx.Node:
        node = create(*args, **kwargs)
        nodes.append(node)
        return node

    graph.create_node = record  # type: ignore[method-assign]  # All ways of adding a node call it.
    try:
        yield
    finally:
        del graph.create_node
        if patched is not None:  # Somebody else's, on this graph.
            graph.create_node = patched  # type: ignore[method-assign]


def _erase(nodes: Sequence[fx.Node], of: fx.Node) -> None:
    """Take nodes out again; what reads them from outside reads what they were built on."""
    for node in reversed(nodes):
        if not node._erased:
            node.replace_all_uses_with(of, delete_user_cb=lambda user: user not in nodes)
            node.graph.erase_node(node)


def _check_graph(of: fx.Node, readers: set[fx.Node], nodes: Sequence[fx.Node], added: int) -> None:
    """Refuse a builder that did more than add nodes."""
    if added != len(nodes):
        raise EditError(
            f"The function that was to build on {of} erased nodes, and these stay erased: it may only add nodes, by "
            "node.graph.call_function(...)."
        )
    if {*of.users}.difference(nodes) != readers:
        raise EditError(
            f"The function that was to build on {of} changed what reads it: return the new node, and wrap() does that."
        )


def _check_nodes(of: fx.Node, result: object, nodes: Sequence[fx.Node]) -> None:
    """Refuse nodes that can't stand for a value."""
    if not any(result is node for node in nodes):
        raise EditError(
            f"The function that was to build on {of} returned {result}, which it didn't build. Return a node that it "
            "added to node.graph."
        )
    for node in nodes:
        strange = next((one for one in node.all_input_nodes if one.graph is not of.graph or one._erased), None)
        if node.op not in {"call_function", "get_attr"}:
            raise EditError(f"{node} is a {node.op}: build on {of} with node.graph.call_function(...).")
        if strange is not None:
            raise EditError(f"{node} reads {strange}, which is not in this graph: read nodes of node.graph.")
        if t.mutated_arguments(node):
            raise EditError(f"{node.target} writes to what it is given: use the operator that returns a new value.")


def _place(nodes: Sequence[fx.Node], anchor: fx.Node) -> None:
    """Put new nodes before the anchor, or behind the last of what they read if that comes later."""
    own = {*nodes}
    for node in nodes:
        if node is not anchor.prev:
            anchor.prepend(node)
    last = max((one for node in nodes for one in node.all_input_nodes if one not in own), default=anchor.prev)
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
    if "val" in node.meta or node.op == "get_attr":
        return
    try:
        node.meta["val"] = fake_values.compute(node, mode)
    except fake_values.Unknown:
        pass  # Then it has none, which index.check() reports.
    except Exception as error:
        raise EditError(fake_values.does_not_work(node, error)) from error
