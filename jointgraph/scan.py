"""One reading of a graph's calling convention: its slots gathered into values, and the values paired.

Nothing here walks the interior of the graph: the cost is linear in the number of slots. Hashing a descriptor is the
dearest step by far (it is recursive Python), so a reading hashes each input once and each gradient once.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, compress, count, groupby
from typing import Any, Generic, TypeVar, cast

import attrs
from torch import fx

from jointgraph import _torch as t
from jointgraph.descriptors import (
    INPUT_KINDS,
    OUTPUT_KINDS,
    SUBCLASS_LAYERS,
    GraphKind,
    InputKind,
    OutputKind,
    SavedForBackwardsAOTInput,
    base_of,
    leaf_path,
)
from jointgraph.exceptions import JointGraphError, malformed
from jointgraph.findings import Finding, FindingCode
from jointgraph.slots import RECAPTURE, Slots

Desc = TypeVar("Desc", t.AOTInput, t.AOTOutput)
Kind = TypeVar("Kind", InputKind, OutputKind)
MakeFinding = Callable[[int, FindingCode, str, str], Finding]
"""Makes a finding about the slot at a position, from its code, the broken rule and the remedy."""

_FORWARD_OUTPUTS = {
    OutputKind.PLAIN,
    OutputKind.INPUT_MUTATION,
    OutputKind.METADATA_MUTATION,
    OutputKind.INTERMEDIATE_BASE,
}


NO_SLOT = object()
"""In place of a slot's descriptor, for a value that has several slots, or is gone: it is found in no slot."""


@attrs.define(eq=False, slots=False)  # A cached property needs a __dict__.
class Values(Generic[Desc, Kind]):
    """The values on one side of a graph, numbered in the order of their first slots."""

    slots: Sequence[Desc | None]
    """The descriptor of each slot."""
    slot_count: int
    """How many slots have a descriptor."""
    descs: Sequence[Desc]
    """The base descriptor of each value."""
    has_leaves: bool
    """Whether any is a tensor subclass."""
    by_kind: Mapping[Kind, Sequence[int]]
    """The numbers of the values of each kind, in order."""
    by_class: Mapping[type, Sequence[int]]
    """The numbers of the values of each descriptor class, in order."""

    @cached_property
    def positions(self) -> Sequence[tuple[int, ...]]:
        """The positions of each value's slots, in order."""
        if len(self.descs) == self.slot_count:
            return list(zip(compress(count(), self.slots)))
        groups: dict[Desc, list[int]] = {desc: [] for desc in self.descs}
        for position, slot in enumerate(self.slots):
            if slot is not None:
                groups[cast(Desc, base_of(slot))].append(position)
        return list(map(tuple, groups.values()))

    @cached_property
    def number(self) -> dict[Desc, int]:
        """Base descriptor → the value's number. Hashes every descriptor, when first asked."""
        return dict(zip(self.descs, count()))

    @cached_property
    def kinds(self) -> Sequence[Kind]:
        """The kind of each value."""
        kinds = dict.fromkeys(range(len(self.descs)), next(iter(self.by_kind), None))
        for kind, numbers in self.by_kind.items():
            kinds.update(dict.fromkeys(numbers, kind))
        return cast(Sequence[Kind], list(kinds.values()))

    def of_kind(self, kind: Kind) -> Sequence[int]:
        """The numbers of the values of one kind, in order."""
        return self.by_kind.get(kind, ())

    def of_kinds(self, kinds: Sequence[Kind]) -> Sequence[int]:
        """The numbers of the values of some kinds, in order; of all, if none are named."""
        if not kinds:
            return range(len(self.descs))
        return self.of_kind(kinds[0]) if len(kinds) == 1 else sorted(chain.from_iterable(map(self.of_kind, kinds)))

    def of_class(self, cls: type) -> Sequence[int]:
        """The numbers of the values whose descriptor is of a class, in order."""
        found = [numbers for own, numbers in self.by_class.items() if issubclass(own, cls)]
        return found[0] if len(found) == 1 else sorted(chain.from_iterable(found))


@attrs.define(eq=False, slots=False)
class Scan:
    """A graph's slots, its values, and which belong together, by their numbers."""

    slots: Slots
    inputs: Values[t.AOTInput, InputKind]
    outputs: Values[t.AOTOutput, OutputKind]
    kind: GraphKind
    grads: Sequence[int | None]
    """For each input, the output that is its gradient, if there is one."""
    tangents: Mapping[int, int]
    """Output → the input that is its tangent."""
    mutations: Mapping[int, int]
    """Input → the output that is its new value."""
    pairs: dict[t.AOTInput, tuple[fx.Node, object]]
    """Input → its placeholder, and the entry of its gradient or ``None``. Empty if there is any subclass."""
    args: object
    """The output node's ``args``, which ``pairs`` is of."""

    @cached_property
    def input_slots(self) -> list[object]:
        """For each input, what stands in ``meta["desc"]`` of its only slot, or ``NO_SLOT``."""
        slots = _only_slots(self.inputs)
        return [None if desc.__class__ is SavedForBackwardsAOTInput else desc for desc in slots]

    @cached_property
    def input_nodes(self) -> list[fx.Node]:
        """For each input, its first placeholder."""
        return [self.slots.placeholders[places[0]] for places in self.inputs.positions]

    @cached_property
    def output_slots(self) -> list[object]:
        """For each output, the descriptor of its only slot, or ``NO_SLOT``."""
        return _only_slots(self.outputs)

    @cached_property
    def grad_of(self) -> dict[int, int]:
        """Output → the input that it is the gradient of."""
        return {grad: number for number, grad in enumerate(self.grads) if grad is not None}

    @cached_property
    def tangent_of(self) -> dict[int, int]:
        """Input → the output that it is the tangent of."""
        return {tangent: output for output, tangent in self.tangents.items()}

    @cached_property
    def mutated_input(self) -> dict[int, int]:
        """Output → the input whose new value it is."""
        return {output: number for number, output in self.mutations.items()}


def interpret(
    slots: Slots,
    faults: list[Finding],
    input_kind: Callable[[t.AOTInput], InputKind] | None = None,
    output_kind: Callable[[t.AOTOutput], OutputKind] | None = None,
) -> Scan:
    """Gather slots into values, and pair them.

    Args:
        slots: the slots of a joint, forward, backward or inference graph.
        faults: what is wrong with them, as far as was found when they were read.
        input_kind: tells the kind of an input from its base descriptor, where the class doesn't.
        output_kind: likewise for outputs.

    Raises:
        MalformedGraphError: with every fault of the graph; a `MissingDescriptorError` if one is a missing descriptor.
    """
    inputs_by_class, outputs_by_class = _by_class(slots.inputs), _by_class(filter(None, slots.outputs))
    if not (_all_of(t.AOTInput, inputs_by_class) and _all_of(t.AOTOutput, outputs_by_class)):
        faults = slots.drop_foreign() + faults
        inputs_by_class, outputs_by_class = _by_class(slots.inputs), _by_class(filter(None, slots.outputs))
    inputs = _gather(slots.inputs, inputs_by_class, INPUT_KINDS, input_kind)
    outputs = _gather(slots.outputs, outputs_by_class, OUTPUT_KINDS, output_kind)
    forward = {  # What can have a tangent. Gradients are never hashed: they are known by what they are of.
        outputs.descs[number]: number
        for kind, numbers in outputs.by_kind.items()
        if kind is not OutputKind.GRAD
        for number in numbers
    }
    grads, no_inputs = _grads(inputs, outputs)
    tangents, no_outputs = _links(inputs, InputKind.TANGENT, "output", forward)
    mutated = outputs.of_kind(OutputKind.INPUT_MUTATION)
    mutations, _ = _links(outputs, OutputKind.INPUT_MUTATION, "mutated_input", inputs.number if mutated else {})
    has_leaves = inputs.has_leaves or outputs.has_leaves
    pairs = {} if has_leaves else _pairs(slots, inputs, grads)
    kind = _graph_kind(inputs, outputs)

    undescribed = inputs.of_class(SavedForBackwardsAOTInput)
    if undescribed and kind is not GraphKind.BACKWARD:
        faults = missing_inputs(slots) + faults
    if has_leaves or len(pairs) < inputs.slot_count:
        faults += _clashes(slots.inputs, slots.input_finding)
    if len(forward) + len(grads) - grads.count(None) + len(no_inputs) < outputs.slot_count:
        faults += _clashes(slots.outputs, slots.output_finding)
    if kind is GraphKind.JOINT:
        faults += _strangers(no_outputs, "tangent", "output", inputs, slots.input_finding)
    if kind is GraphKind.JOINT and not undescribed:  # Else the input may be just undescribed.
        faults += _strangers(no_inputs, "gradient", "input", outputs, slots.output_finding)
    if faults:
        raise malformed(faults)
    return Scan(slots, inputs, outputs, kind, grads, tangents, mutations, pairs, slots.output_args)


def _pairs(
    slots: Slots, inputs: Values[t.AOTInput, InputKind], grads: Sequence[int | None]
) -> dict[t.AOTInput, tuple[fx.Node, object]]:
    """Pair the only placeholder of each input with the only entry of its gradient."""
    entries = list(compress(slots.entries, slots.outputs)) if slots.outputs else []
    found = [None if number is None else entries[number] for number in grads]
    return dict(zip(inputs.descs, zip(slots.placeholders, found)))


def _only_slots(values: Values[Any, Any]) -> list[object]:
    """For each value, the descriptor of its only slot, or ``NO_SLOT`` if it has several."""
    if not values.has_leaves:
        return list(values.descs)
    return [values.slots[places[0]] if len(places) == 1 else NO_SLOT for places in values.positions]


def _by_class(descs: Iterable[object]) -> dict[type, list[int]]:
    """The numbers of descriptors by their class, read run by run, as neighbours are mostly of one class."""
    numbers: defaultdict[type, list[int]] = defaultdict(list)
    start = 0
    for cls, run in groupby(descs, type):
        end = start + len(list(run))
        numbers[cls] += range(start, end)
        start = end
    return numbers


def _all_of(base: type, classes: Iterable[type]) -> bool:
    return all(issubclass(cls, base) for cls in classes)


def _gather(
    slots: Sequence[Desc | None],
    by_class: Mapping[type, list[int]],
    kinds: Mapping[type, Kind],
    kind_of: Callable[[Desc], Kind] | None,
) -> Values[Desc, Kind]:
    """Gather the slots of each base descriptor into one value, and the values by kind."""
    slot_count = sum(map(len, by_class.values()))
    descs = cast(list[Desc], slots if slot_count == len(slots) else list(filter(None, slots)))
    has_leaves = any(issubclass(cls, SUBCLASS_LAYERS) for cls in by_class)
    if has_leaves:
        descs = list(dict.fromkeys(cast(Desc, base_of(desc)) for desc in descs))
        by_class = _by_class(descs)
    by_kind: defaultdict[Kind, list[int]] = defaultdict(list)
    if kind_of:
        for number, desc in enumerate(descs):
            by_kind[kind_of(desc)].append(number)
    else:
        for cls, numbers in by_class.items():
            kind: Kind = kinds[cls]
            by_kind[kind] = sorted(by_kind[kind] + numbers) if kind in by_kind else numbers
    return Values(slots, slot_count, descs, has_leaves, by_kind, by_class)


def _graph_kind(inputs: Values[t.AOTInput, InputKind], outputs: Values[t.AOTOutput, OutputKind]) -> GraphKind:
    """Tell the graph's kind from what it takes and returns."""
    if inputs.of_kind(InputKind.TANGENT) or outputs.of_kind(OutputKind.GRAD):
        return GraphKind.JOINT if any(map(outputs.of_kind, _FORWARD_OUTPUTS)) else GraphKind.BACKWARD
    return GraphKind.FORWARD if outputs.of_kind(OutputKind.SAVED) else GraphKind.INFERENCE


def _owners(values: Values[Desc, Kind], kind: Kind, field: str) -> list[Any]:
    """For each value of a kind, whose descriptors name in ``field`` to whom they belong: to whom."""
    descs = values.descs
    try:
        return [getattr(descs[number], field) for number in values.of_kind(kind)]
    except AttributeError as error:
        raise JointGraphError(
            f"{type(error.obj).__name__} was given the kind {kind}, but its descriptors have no {field!r} to say to "
            "whom they belong. Add that field, or give the class another kind."
        ) from error


def _grads(
    inputs: Values[t.AOTInput, InputKind], outputs: Values[t.AOTOutput, OutputKind]
) -> tuple[list[int | None], dict[object, int]]:
    """For each input the number of its gradient; and the gradients of no input here, by what they are of.

    AOTAutograd uses one descriptor object wherever it means one value, so these are matched as objects, which hashes
    none; by equality only if that leaves any unmatched.
    """
    owners, numbers = _owners(outputs, OutputKind.GRAD, "grad_of"), outputs.of_kind(OutputKind.GRAD)
    if owners == inputs.descs[: len(owners)]:  # In step, as they are where the first inputs all want one.
        return [*numbers, *[None] * (len(inputs.descs) - len(owners))], {}
    by_id = dict(zip(map(id, owners), numbers))
    grads = list(map(by_id.get, map(id, inputs.descs)))
    if len(grads) - grads.count(None) == len(numbers):
        return grads, {}
    grads, strangers = [None] * len(inputs.descs), {}
    for owner, number in zip(owners, numbers):
        if owner in inputs.number:
            grads[inputs.number[owner]] = number
        else:
            strangers[owner] = number
    return grads, strangers


def _links(
    values: Values[Desc, Kind], kind: Kind, field: str, number_of: Mapping[Any, int]
) -> tuple[dict[int, int], dict[object, int]]:
    """For the values of a kind, the number of each one's owner → its number; and those of unknown owners, by owner."""
    links, strangers = {}, {}
    for owner, number in zip(_owners(values, kind, field), values.of_kind(kind)):
        if owner in number_of:
            links[number_of[owner]] = number
        else:
            strangers[owner] = number
    return links, strangers


def missing_inputs(slots: Slots) -> list[Finding]:
    """The placeholders without a descriptor."""
    return [
        slots.input_finding(position, FindingCode.MISSING_DESCRIPTOR, 'its meta["desc"] is missing.', RECAPTURE)
        for position, node in enumerate(slots.placeholders)
        if node.meta.get("desc") is None
    ]


def _clashes(slots: Sequence[t.AOTInput] | Sequence[t.AOTOutput | None], finding: MakeFinding) -> list[Finding]:
    """The slots that describe what an earlier slot describes already."""
    faults = []
    first: dict[t.AOTInput | t.AOTOutput, dict[str, int]] = {}
    for position, desc in enumerate(slots):
        if desc is None:
            continue
        base, path = base_of(desc), leaf_path(desc)
        leaves = first.setdefault(base, {})
        code = FindingCode.DUPLICATE_DESCRIPTOR
        if path in leaves:
            where = finding(leaves[path], code, "", "").where
            rule = f"it has the same descriptor as {where}: {desc}."
            faults.append(finding(position, code, rule, "Give each slot its own."))
        elif leaves and "" in (path, *leaves):
            where = finding(min(leaves.values()), code, "", "").where
            rule = f"its descriptor {desc} clashes with {where}: a value is one slot or leaves."
            faults.append(finding(position, code, rule, f"Keep {base} itself, or its leaves."))
        leaves.setdefault(path, position)
    return faults


def _strangers(
    owners: Mapping[object, int], what: str, whose: str, values: Values[Desc, Kind], finding: MakeFinding
) -> list[Finding]:
    """The gradients or tangents of what is no value of this graph."""
    remedy = f"Remove the {what}, or put the {whose} back."
    return [
        finding(
            values.positions[number][0],
            FindingCode.STRANGER,
            f"it is the {what} of {owner}, which is no {whose} of this joint graph.",
            remedy,
        )
        for owner, number in owners.items()
    ]
