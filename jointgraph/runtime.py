"""A graph's interface beside what AOTAutograd's runtime wrapper hands over and expects, which is pinned at capture."""

from collections.abc import Iterator, Mapping

from torch import fx

from jointgraph import _torch as t
from jointgraph.descriptors import INPUT_KINDS, OF_BACKWARD_OUTPUTS, GraphKind, base_of, leaf_path, substituted
from jointgraph.exceptions import JointGraphError
from jointgraph.findings import Finding, FindingCode
from jointgraph.scan import Scan

_CODE = FindingCode.RUNTIME_METADATA
_Place = tuple[t.AOTOutput | None, str] | None
"""What must stand in a slot, and which leaf of it; ``None`` where nothing is known."""
_REMEDY = (
    "Keep the captured calling convention, or call the graph yourself: the compiled function can't follow this change."
)


def check_runtime(scan: Scan, joint: object) -> Iterator[Finding]:
    """Where a graph's inputs and outputs are not those that the runtime wrapper of ``joint`` was made for.

    Raises:
        TypeError: if ``joint`` is no ``JointWithDescriptors``.
        JointGraphError: if the graph is one of its halves, which AOTAutograd calls in its own way.
    """
    runtime = t.runtime_convention(joint)
    if runtime is None:
        raise TypeError(f"check() takes the JointWithDescriptors of the graph, not {type(joint).__name__}.")
    if scan.kind in {GraphKind.FORWARD, GraphKind.BACKWARD}:
        raise JointGraphError("check(joint) is about the whole graph that was captured: check() each half without it.")
    names: dict[object, object] = {}
    yield from _inputs(scan, runtime, names)
    yield from _tangents(scan, runtime, names)
    yield from _outputs(scan, runtime, names)


def _inputs(scan: Scan, runtime: t.RuntimeConvention, names: dict[object, object]) -> Iterator[Finding]:
    """Placeholders that aren't what is handed over in their place. Fills in ``names``: captured → renamed."""
    slots = scan.slots
    tokens = [desc for desc in slots.inputs if isinstance(desc, t.BackwardTokenAOTInput)]
    count, expected = len(slots.inputs) - len(tokens), runtime.inputs
    if count != len(expected):
        rule = f"it takes {count} inputs, and AOTAutograd hands over {len(expected)}."
        yield Finding(_CODE, "graph", rule, _REMEDY)
        return
    known = {*expected}
    for position, (desc, handed) in enumerate(zip(slots.inputs, expected)):
        if desc == handed:
            continue
        if desc in known or INPUT_KINDS[type(base_of(desc))] is not INPUT_KINDS[type(base_of(handed))]:
            yield slots.input_finding(position, _CODE, f"AOTAutograd hands over {handed} in its place.", _REMEDY)
        else:  # Another name for the same thing is no harm: what is handed over is known by its place.
            names[base_of(handed)] = base_of(desc)


def _tangents(scan: Scan, runtime: t.RuntimeConvention, names: Mapping[object, object]) -> Iterator[Finding]:
    """Outputs whose tangent is handed over, and that have none here; and the other way round."""
    expected = {substituted(getattr(tangent, "output", None), names) for tangent in runtime.tangents}
    for number, desc in enumerate(scan.outputs.descs):
        has = number in scan.tangents
        if has != (desc in expected):
            rule = (
                "AOTAutograd hands over no tangent for it, as it was captured without."
                if has
                else "it requires a gradient, and its tangent, which AOTAutograd hands over, is no input of the graph."
            )
            yield scan.slots.output_finding(scan.outputs.positions[number][0], _CODE, rule, _REMEDY)


def _outputs(scan: Scan, runtime: t.RuntimeConvention, names: Mapping[object, object]) -> Iterator[Finding]:
    """Output lists of another length, and slots that aren't what is taken from their places."""
    slots = scan.slots
    places = [None] * runtime.tokens + _forward_places(runtime, names)
    forward = len(places)
    places += _grad_places(runtime, names)
    own = sum(isinstance(desc, OF_BACKWARD_OUTPUTS) for desc in slots.outputs)
    if len(slots.outputs) != len(places) + own:
        backward = len(places) + own - forward
        rule = (
            f"it returns {len(slots.outputs)} values, and AOTAutograd expects {forward} of forward and {backward} of "
        )
        yield Finding(_CODE, "output", rule + "backward.", _REMEDY, slots.output)
        return
    for position, (desc, entry, place) in enumerate(zip(slots.outputs, slots.entries, places)):
        if place is None:
            continue
        expected, path = place
        base = None if desc is None else base_of(desc)
        if isinstance(base, t.MetadataMutationAOTOutput) or (base is None and isinstance(expected, t.GradAOTOutput)):
            continue  # These have numbers of their own; and a gradient may not be asked for.
        if expected is None:  # The base of results, which none of the others can stand for.
            wrong = isinstance(base, (t.PlainAOTOutput, t.GradAOTOutput, t.InputMutationAOTOutput))
        else:
            wrong = base != expected or (desc is not None and path not in {leaf_path(desc), "?"})
        if wrong:
            what = "the base of results" if expected is None else f"{expected}{path and f', its leaf {path},'}"
            yield slots.output_finding(position, _CODE, f"AOTAutograd expects {what} in its place.", _REMEDY)
        elif not isinstance(entry, fx.Node) and _must_be_tensor(expected, path, runtime):
            yield slots.output_finding(position, _CODE, "AOTAutograd expects a tensor in its place.", _REMEDY)


def _forward_places(runtime: t.RuntimeConvention, names: Mapping[object, object]) -> list[_Place]:
    """What each slot of the forward outputs must be, tokens aside: its descriptor, and the leaf."""
    mutations = [t.InputMutationAOTOutput(substituted(desc, names)) for desc in runtime.mutated]
    results = [t.PlainAOTOutput(idx) for idx in range(runtime.results)]
    values: list[t.AOTOutput | None] = [*mutations, *results]
    values += [None] * (len(runtime.forward_leaves) - len(values))
    return [(value, path) for value, paths in zip(values, runtime.forward_leaves) for path in paths]


def _grad_places(runtime: t.RuntimeConvention, names: Mapping[object, object]) -> list[_Place]:
    """What each slot of the gradients must be, if it is described."""
    primals = dict.fromkeys(map(base_of, runtime.inputs[: runtime.primal_count]))
    owners = [substituted(desc, names) for desc in primals if not isinstance(desc, t.ForwardTokenAOTInput)]
    return [(t.GradAOTOutput(owner), path) for owner, paths in zip(owners, runtime.grad_leaves) for path in paths]


def _must_be_tensor(expected: t.AOTOutput | None, path: str, runtime: t.RuntimeConvention) -> bool:
    """Whether a slot can't hold ``None``: a result that was a tensor, a new value, one leaf of several."""
    if isinstance(expected, t.PlainAOTOutput):
        return expected.idx in runtime.tensors and path != "?"
    return isinstance(expected, t.InputMutationAOTOutput) or path not in {"", "?"}
