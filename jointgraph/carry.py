"""Carrying descriptors over to a graph that was made from another, and lost them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from torch import fx

from jointgraph import _torch as t
from jointgraph import fake_values
from jointgraph.exceptions import EditError, listed
from jointgraph.fake_values import difference
from jointgraph.findings import Finding, FindingCode
from jointgraph.holders import Holder, graph_of, module_of
from jointgraph.reach import numbers_in, reached_from
from jointgraph.scan import interpret
from jointgraph.slots import Slots, read_slots

_RETRACE = "A graph of nested lists, as a pickled one, becomes flat by make_fx(module)(primals, tangents)."


def copy_descriptors(source: Holder, target: Holder) -> None:
    """Describe the slots of a graph as those of the graph that it was made from.

    Pickling, retracing with ``make_fx`` and ``fx.Transformer`` lose descriptors. Slots are matched by position, and
    refused if they can't be the same: the operators of ``target`` are run on the fake inputs of ``source``, and must
    return what ``source`` returns in shape, dtype and device, from the same inputs or fewer. Two slots of one shape
    that depend on the same inputs can't be told apart.

    Placeholders get the names of the other graph's, by which torch's partitioners know tangents; all nodes get the
    values that were found, under the fake mode of ``source``. Costs about 0.1 ms a node.

    Args:
        source: a graph with descriptors; it is not changed.
        target: the graph to describe, in place of what descriptors it may have.

    Raises:
        EditError: if they don't fit; it lists every misfit, and ``target`` is as it was.
        MalformedGraphError: if ``source`` itself breaks a rule.
    """
    slots, made = interpret(*read_slots(graph_of(source))).slots, graph_of(target)
    found = [*_counts(slots, made)]
    vals: dict[fx.Node, Any] = {}
    if not found:
        found += [*_names(slots, made)]
        vals = _run(slots, made, found)
        found += [*_misfits(slots, made, vals)]
    if not found:
        found += [*_strangers(slots, made)]
    if found:
        raise EditError(f"The descriptors of one graph don't fit the other {listed(found)}\nIt is as it was.", found)
    for node, original in zip(made.find_nodes(op="placeholder"), slots.placeholders):
        if "desc" in original.meta:
            node.meta = {**node.meta, "desc": original.meta["desc"]}
        node._rename(original.name)
        node.target = node.name
    output = made.output_node()
    output.meta = {**output.meta, "desc": list(slots.outputs)}
    for node, val in vals.items():
        fake_values.set_val(node, val)
    module = module_of(target)
    if module is not None and module.graph is made:
        module.recompile()


def _returned(graph: fx.Graph) -> Sequence[object] | None:
    """What a graph returns, if that is a flat list."""
    returned = next((node.args[0] for node in graph.find_nodes(op="output")), None)
    nests = isinstance(returned, (list, tuple)) and any(isinstance(one, (list, tuple, dict)) for one in returned)
    return returned if isinstance(returned, (list, tuple)) and not nests else None


def _counts(slots: Slots, made: fx.Graph) -> Iterator[Finding]:
    """That a graph has more or fewer slots than it should."""
    count, returned = len(made.find_nodes(op="placeholder")), _returned(made)
    if count != len(slots.placeholders):
        rule = f"it takes {count} inputs instead of {len(slots.placeholders)}."
        yield Finding(FindingCode.SLOT_COUNT, "graph", rule, _RETRACE)
    if returned is None:
        yield Finding(FindingCode.OUTPUT_LIST, "output", "it returns no flat list.", _RETRACE)
    elif len(returned) != len(slots.outputs):
        rule = f"it returns {len(returned)} values instead of {len(slots.outputs)}."
        yield Finding(
            FindingCode.SLOT_COUNT, "output", rule, "Return what the other graph returns.", made.output_node()
        )


def _names(slots: Slots, made: fx.Graph) -> Iterator[Finding]:
    """Placeholders that have the name of another one's original."""
    position_of = {node.name: position for position, node in enumerate(slots.placeholders)}
    for position, node in enumerate(made.find_nodes(op="placeholder")):
        if position_of.get(node.name, position) != position:
            rule = f"its name is that of input {position_of[node.name]}, and it is input {position}."
            yield Finding(FindingCode.SLOT_MISMATCH, f"placeholder {node.name}", rule, "Keep their order.", node)


def _run(slots: Slots, made: fx.Graph, found: list[Finding]) -> dict[fx.Node, Any]:
    """The values of all nodes, on the inputs of the other graph, as far as they can be told."""
    mode = fake_values.mode_of(slots.placeholders)
    originals = dict(zip(made.find_nodes(op="placeholder"), slots.placeholders))
    vals: dict[fx.Node, Any] = {node: one.meta["val"] for node, one in originals.items() if "val" in one.meta}
    for node in made.nodes:
        if node.op in {"placeholder", "output", "get_attr"}:
            continue
        try:
            vals[node] = fake_values.compute(node, mode, vals)
        except fake_values.Unknown:
            continue
        except Exception as error:
            rule = fake_values.does_not_work(node, error)
            remedy = "It was made from another graph, or its inputs are in another order."
            found.append(Finding(FindingCode.SLOT_MISMATCH, f"node {node.name}", rule, remedy, node))
            break
    return vals


def _misfits(slots: Slots, made: fx.Graph, vals: dict[fx.Node, Any]) -> Iterator[Finding]:
    """Slots that differ from their originals."""
    for node, original in zip(made.find_nodes(op="placeholder"), slots.placeholders):
        differs = difference(node.meta.get("val"), original.meta.get("val"))
        if differs:
            rule, remedy = (
                f"it has {differs}, that of {original.meta.get('desc')}.",
                "Take the inputs in the same order.",
            )
            yield Finding(FindingCode.SLOT_MISMATCH, f"placeholder {node.name}", rule, remedy, node)
    returned = cast(Sequence[object], _returned(made))
    for position, (entry, expected) in enumerate(zip(returned, slots.entries)):
        differs = ""
        if isinstance(entry, fx.Node) != isinstance(expected, fx.Node):
            differs = f"{entry} instead of {expected}"
        elif not isinstance(entry, fx.Node) and entry != expected:
            differs = f"{entry!r} instead of {expected!r}"
        elif isinstance(entry, fx.Node) and isinstance(expected, fx.Node):
            differs = difference(vals.get(entry, entry.meta.get("val")), expected.meta.get("val"))
        if differs:
            rule, remedy = f"it has {differs}, that of {slots.outputs[position]}.", "Return the same in the same order."
            where = f"output[{position}] ({entry})"
            yield Finding(FindingCode.SLOT_MISMATCH, where, rule, remedy, made.output_node())


def _strangers(slots: Slots, made: fx.Graph) -> Iterator[Finding]:
    """Returned values that depend on inputs on which those of the other graph do not."""
    before, after = _sources(slots.output.graph), _sources(made)
    nodes = made.find_nodes(op="placeholder")
    for position, (entry, expected) in enumerate(zip(cast(Sequence[object], _returned(made)), slots.entries)):
        if isinstance(entry, fx.Node) and isinstance(expected, fx.Node):
            more = numbers_in(after[entry] & ~before[expected])
            if more:
                some = ", ".join(str(nodes[number]) for number in more[:3])
                rule = f"it depends on {some}, and {slots.outputs[position]} does not."
                remedy, where = "Take and return the same in the same order.", f"output[{position}] ({entry})"
                yield Finding(FindingCode.SLOT_MISMATCH, where, rule, remedy, made.output_node())


def _sources(graph: fx.Graph) -> Mapping[fx.Node, int]:
    """For each node, the positions of the placeholders that it depends on, as a set of bits."""
    nodes = list(graph.nodes)
    starts = {node: 1 << position for position, node in enumerate(graph.find_nodes(op="placeholder"))}
    return reached_from(nodes, list(map(t.input_nodes, nodes)), starts)
