"""The slots of a graph as a step of an edit would have them: some more, some less, some under other names."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from torch import fx

from jointgraph import _torch as t
from jointgraph.descriptors import GraphKind, InputKind, OutputKind, base_of, name_of, substituted
from jointgraph.exceptions import EditError
from jointgraph.interface import Interface
from jointgraph.layout import gap_for, grad_places, is_backward, place_for
from jointgraph.leaves import Leaf
from jointgraph.missing import unknown
from jointgraph.records import Input, Output
from jointgraph.rewriter import InputSlot, OutputSlot, Rewriter, Value
from jointgraph.scan import Scan, Values

Plan = tuple[list[InputSlot], list[OutputSlot]]
Slot = TypeVar("Slot", InputSlot, OutputSlot)


def with_inputs(rewriter: Rewriter, interface: Interface, vals: Mapping[t.AOTInput, Any], after: Input | None) -> Plan:
    """The slots with more inputs, and with an empty place for the gradient of each where there are such places.

    Raises:
        EditError: if there can be no input of such a descriptor.
    """
    scan, (inputs, outputs) = rewriter.scan(), rewriter.slots()
    behind = None if after is None else rewriter.behind(after)
    found: dict[object, int] = {}
    new: defaultdict[int, list[InputSlot]] = defaultdict(list)
    gaps: defaultdict[int, list[OutputSlot]] = defaultdict(list)
    known: set[t.AOTInput | t.AOTOutput] = {*scan.inputs.number}
    places = grad_places(scan)
    for desc, val in vals.items():
        _check_new(interface, desc, t.AOTInput)
        base = base_of(desc)
        position = _place(interface, scan.inputs, desc, found) if behind is None else behind
        new[position].append(InputSlot(None, desc, val))
        gap = gap_for(scan, places, desc, position) if base not in known else None
        known.add(base)
        if gap is not None:
            gaps[gap].append(OutputSlot(None, None))
    return _spliced(inputs, new), _spliced(outputs, gaps)


def with_outputs(
    rewriter: Rewriter, interface: Interface, nodes: Mapping[t.AOTOutput, fx.Node | None], after: Output | None
) -> Plan:
    """The slots with more outputs; gradients in the places that are kept for them.

    Raises:
        EditError: if there can be no output of such a descriptor.
    """
    scan, (inputs, outputs) = rewriter.scan(), rewriter.slots()
    behind = None if after is None else rewriter.behind(after)
    kept = grad_places(scan) if behind is None else {}
    found: dict[object, int] = {}
    new: defaultdict[int, list[OutputSlot]] = defaultdict(list)
    for desc, node in nodes.items():
        _check_new(interface, desc, t.AOTOutput)
        rewriter.check_node(node)
        owner = _grad_owner(scan, desc)
        place = kept[owner][0] if owner is not None and owner in kept and scan.grads[owner] is None else None
        if place is not None and outputs[place].desc is None:
            outputs[place].entry, outputs[place].desc = node, desc
        elif place is not None:  # A further leaf of a gradient whose first leaf took the place.
            new[place + 1].append(OutputSlot(node, desc))
        else:
            position = _place(interface, scan.outputs, desc, found) if behind is None else behind
            new[position].append(OutputSlot(node, desc))
    return inputs, _spliced(outputs, new)


def without(rewriter: Rewriter, interface: Interface, records: Sequence[Input | Output]) -> Plan:
    """The slots without those of some values. A gradient leaves its place, unless its input goes, too.

    Raises:
        EditError: if others need one of them that stay.
    """
    scan, (inputs, outputs) = rewriter.scan(), rewriter.slots()
    with interface.reading():
        _check_unneeded(records)
    kept = grad_places(scan)
    gone = {node for record in records if isinstance(record, Input) for node in record.nodes}
    dropped: set[int] = set()
    for record in records:
        if isinstance(record, Input):
            number = scan.inputs.number[record.desc]
            grad = scan.grads[number]
            dropped |= {*kept.get(number, () if grad is None else scan.outputs.positions[grad])}
        else:
            first, *others = scan.outputs.positions[scan.outputs.number[record.desc]]
            dropped |= {*others}
            if _grad_owner(scan, record.desc) in kept:
                outputs[first].entry, outputs[first].desc = None, None
            else:
                dropped.add(first)
    return (
        [slot for slot in inputs if slot.node not in gone],
        [slot for position, slot in enumerate(outputs) if position not in dropped],
    )


def renamed(rewriter: Rewriter, names: Mapping[str, str]) -> Plan:
    """The slots with other names for parameters and buffers, in all descriptors.

    Raises:
        UnknownNameError: for an old name that the graph doesn't have.
        EditError: if two would have the same name, or one is no name.
    """
    values = rewriter.scan().inputs
    descs = [values.descs[number] for number in values.of_kinds((InputKind.PARAM, InputKind.BUFFER))]
    named = {name_of(desc): desc for desc in descs}
    for old, name in names.items():
        if old not in named:
            raise unknown(old, "params and buffers", named, ())
        if type(name) is not str or not name:
            raise EditError(f"{name!r} is no name: give a fully qualified name.")
    counts = Counter([*names.values(), *(named.keys() - names.keys())])
    clash = next((name for name in names.values() if counts[name] > 1), None)
    if clash is not None:
        raise EditError(f"Two parameters or buffers would be named {clash!r}: give each its own name.")
    new = {named[old]: replace(cast(Any, named[old]), target=name) for old, name in names.items()}
    inputs, outputs = rewriter.slots()
    for slot in inputs:
        slot.desc = substituted(slot.desc, new)
    for entry in outputs:
        entry.desc = None if entry.desc is None else substituted(entry.desc, new)
    return inputs, outputs


def check_not_saved(value: Value) -> None:
    """Refuse to change what a forward graph saves, which backward knows by its node's name.

    Raises:
        EditError: if it is such an output.
    """
    record = value._record if isinstance(value, Leaf) else value
    if isinstance(record, Output) and record.kind is OutputKind.SAVED:
        raise EditError(
            f"{record!r} links two graphs, by the name of its node: edit the joint graph, and partition that."
        )


def _place(
    interface: Interface, values: Values[Any, Any], desc: t.AOTInput | t.AOTOutput, found: dict[object, int]
) -> int:
    """The position for a new slot, which is looked for once for all of a kind."""
    base = base_of(desc)
    kind = interface.kind_of(base)
    key = base if base in values.number else (kind, is_backward(desc))
    if key not in found:
        found[key] = place_for(values, desc, kind)
    return found[key]


def _spliced(slots: Sequence[Slot], new: Mapping[int, Sequence[Slot]]) -> list[Slot]:
    """Slots with new ones before the positions that these are for."""
    found: list[Slot] = []
    for position in range(len(slots) + 1):
        found += new.get(position, ())
        found += slots[position : position + 1]
    return found


def _check_new(
    interface: Interface, desc: t.AOTInput | t.AOTOutput, side: type[t.AOTInput] | type[t.AOTOutput]
) -> None:
    """Refuse a descriptor that no new slot can have."""
    if not isinstance(desc, side):
        raise EditError(f"{desc!r} is no {side.__name__}: describe the new slot by one.")
    base = base_of(desc)
    if interface.kind_of(base) in {InputKind.SAVED, OutputKind.SAVED}:
        raise EditError(f"{base} is an output of one graph and an input of another: partition the joint graph anew.")
    if interface.scan.kind is GraphKind.BACKWARD and isinstance(desc, t.AOTOutput) and not is_backward(desc):
        raise EditError(f"{base} is an output of forward, and this is a backward graph: add it to the joint graph.")
    if not interface.keeps(base):
        raise EditError(f"This index leaves out what has the descriptor {base}: edit through one that keeps it.")


def _check_unneeded(records: Sequence[Input | Output]) -> None:
    """Refuse to remove what others need that stay."""
    removed = {*records}
    returned = Counter(node for record in records if isinstance(record, Output) for node in record.nodes)
    for record in records:
        needed: Sequence[tuple[str, Input | Output | None]]
        if isinstance(record, Output):
            needed = [("a tangent", record.tangent)]
        else:
            readers = [user for node in record.nodes for user in _readers_that_stay(node, returned)]
            if readers:
                some = ", ".join(map(str, readers[:3]))
                raise EditError(f"{record!r} is read by {some}: give them something else first.")
            needed = [("a gradient", record.grad), ("a new value", record.mutation)]
        for what, other in needed:
            if other is not None and other not in removed:
                raise EditError(f"{record!r} has {what}, {other!r}: remove that, too.")


def _readers_that_stay(node: fx.Node, returned: Mapping[fx.Node, int]) -> list[fx.Node]:
    """What reads a node; not the output list, if all its entries of it go."""
    found = [user for user in node.users if user.op != "output"]
    for output in (user for user in node.users if user.op == "output"):
        entries = cast(Sequence[object], output.args[0])
        if sum(entry is node for entry in entries) > returned.get(node, 0):
            found.append(output)
    return found


def _grad_owner(scan: Scan, desc: t.AOTInput | t.AOTOutput) -> int | None:
    """The number of the input that a gradient belongs to; ``None`` for other outputs, and if it isn't in the graph."""
    base = base_of(desc)
    return scan.inputs.number.get(base.grad_of) if isinstance(base, t.GradAOTOutput) else None
