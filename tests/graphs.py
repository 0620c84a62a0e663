"""Reading and changing graphs by plain FX, as a pass would."""

import copy
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd import descriptors as d

from tests.capture import torchs_own_warnings


def copy_of(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of a graph module that shares no list of descriptors with it, as a ``deepcopy`` alone does."""
    with torchs_own_warnings():
        copied = copy.deepcopy(module)
    output = copied.graph.output_node()
    output.meta["desc"] = list(output.meta["desc"])
    return copied


def placeholder(graph: fx.Graph, name: str) -> fx.Node:
    """The placeholder of this name."""
    nodes: list[fx.Node] = graph.find_nodes(op="placeholder")
    (node,) = (node for node in nodes if node.name == name)
    return node


def entries(graph: fx.Graph) -> list[Any]:
    """What the graph returns."""
    returned = graph.output_node().args[0]
    assert isinstance(returned, (list, tuple))
    return list(returned)


def interior(graph: fx.Graph) -> list[fx.Node]:
    """The nodes that fill no slot."""
    returned = entries(graph)
    return [node for node in graph.nodes if node.op not in {"placeholder", "output"} and node not in returned]


def set_outputs(graph: fx.Graph, values: list[Any], descs: list[d.AOTOutput | None]) -> None:
    """Have the graph return these, so described."""
    output = graph.output_node()
    output.args = (values,)
    output.meta["desc"] = descs


def reverse_slots(graph: fx.Graph) -> None:
    """Put the placeholders, and the output entries with their descriptors, in reverse order."""
    first, *others = graph.find_nodes(op="placeholder")
    for node in others:
        first.prepend(node)
        first = node
    set_outputs(graph, entries(graph)[::-1], graph.output_node().meta["desc"][::-1])
    graph.lint()


def erase_input(graph: fx.Graph, node: fx.Node) -> None:
    """Erase a placeholder and put zeros in its place."""
    with graph.inserting_after(node):
        zeros = graph.call_function(torch.zeros, (tuple(node.meta["val"].shape),))
    node.replace_all_uses_with(zeros)
    graph.erase_node(node)


def snapshot(graph: fx.Graph) -> object:
    """All that asking about a graph may not change: its code, its metadata, and its descriptors."""
    metas = [(node, {key: id(value) for key, value in node.meta.items()}) for node in graph.nodes]
    descs = graph.output_node().meta.get("desc") if graph.find_nodes(op="output") else None
    return graph.python_code("self").src, metas, list(descs or ())
