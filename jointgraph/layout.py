"""Where a graph's slots stand, and where a new one goes."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from jointgraph import _torch as t
from jointgraph.descriptors import (
    INPUT_KINDS,
    OF_BACKWARD_INPUTS,
    OF_BACKWARD_OUTPUTS,
    GraphKind,
    InputKind,
    OutputKind,
    base_of,
)
from jointgraph.scan import Scan, Values

_BACKWARDS = (t.TangentAOTInput, *OF_BACKWARD_INPUTS, t.GradAOTOutput, *OF_BACKWARD_OUTPUTS)
_NO_GRADIENT = {InputKind.TANGENT, InputKind.TOKEN, InputKind.PHILOX}
"""The kinds of inputs that no gradient's place is kept for."""


def is_backward(desc: t.AOTInput | t.AOTOutput | None) -> bool:
    """Whether a slot of this descriptor is the backward pass's own: a tangent, a gradient, a token or an offset of it.

    An undescribed output is: AOTAutograd leaves the places of gradients undescribed that nobody asked for.
    """
    return desc is None or isinstance(base_of(desc), _BACKWARDS)


def place_for(values: Values[Any, Any], desc: t.AOTInput | t.AOTOutput, kind: InputKind | OutputKind) -> int:
    """The position for a new slot: behind the last of its value or of its kind, else behind its half of the slots."""
    base = base_of(desc)
    if base in values.number:
        return values.positions[values.number[base]][-1] + 1
    alike = values.of_kind(kind)
    if alike:
        return max(values.positions[number][-1] for number in alike) + 1
    if is_backward(desc):
        return len(values.slots)
    forward = [position for position, slot in enumerate(values.slots) if not is_backward(slot)]
    return forward[-1] + 1 if forward else 0


def grad_places(scan: Scan) -> Mapping[int, Sequence[int]]:
    """Input → the positions that the output list keeps for its gradient, described or not.

    AOTAutograd ends the output list of a joint graph with the gradients of all inputs in order, and leaves an
    undescribed ``None`` for each input that asked for none. ``{}`` where the output list isn't of that form.
    """
    if scan.kind is not GraphKind.JOINT:
        return {}
    slots, found = scan.slots.outputs, {}
    at = 1 + max((position for position, slot in enumerate(slots) if not is_backward(slot)), default=-1)
    for number, (kind, grad) in enumerate(zip(scan.inputs.kinds, scan.grads)):
        if kind in _NO_GRADIENT:
            continue
        places = range(at, at + 1) if grad is None else scan.outputs.positions[grad]
        at += len(places)
        if (
            [*places] != [*range(at - len(places), at)]
            or at > len(slots)
            or (grad is None and slots[at - 1] is not None)
        ):
            return {}
        found[number] = places
    return found if all(slot is not None and is_backward(slot) for slot in slots[at:]) else {}


def gap_for(scan: Scan, places: Mapping[int, Sequence[int]], desc: t.AOTInput, position: int) -> int | None:
    """Where an output list with ``places`` for gradients gets one for a new input at ``position``; else ``None``."""
    if not places or INPUT_KINDS[type(base_of(desc))] in _NO_GRADIENT:
        return None
    numbers = [*places]
    behind = bisect_left(numbers, position, key=lambda number: scan.inputs.positions[number][0])
    return places[numbers[behind - 1]][-1] + 1 if behind else places[numbers[0]][0]
