"""A graph's interface beside what AOTAutograd's runtime wrapper hands over and expects, which is pinned at capture."""

from collections.abc import Iterator

from jointgraph import _torch as t
from jointgraph.descriptors import INPUT_KINDS, base_of
from jointgraph.findings import Finding, FindingCode
from jointgraph.scan import Scan

_CODE = FindingCode.RUNTIME_METADATA
_BACKWARDS_OWN = (t.BackwardTokenAOTOutput, t.PhiloxUpdatedBackwardOffsetAOTOutput)
"""The outputs of backward that are no gradients."""
_REMEDY = (
    "Keep the captured calling convention, or call the graph yourself: the compiled function can't follow this change."
)


def check_runtime(scan: Scan, joint: object) -> Iterator[Finding]:
    """Where a graph's inputs and outputs are not those that the runtime wrapper of ``joint`` was made for.

    Raises:
        TypeError: if ``joint`` is no ``JointWithDescriptors``.
    """
    runtime = t.runtime_convention(joint)
    if runtime is None:
        raise TypeError(f"check() takes the JointWithDescriptors of the graph, not {type(joint).__name__}.")
    yield from _inputs(scan, runtime)
    yield from _tangents(scan, runtime)
    yield from _outputs(scan, runtime)


def _inputs(scan: Scan, runtime: t.RuntimeConvention) -> Iterator[Finding]:
    """Placeholders that aren't what is handed over in their place."""
    slots = scan.slots
    tokens = [desc for desc in slots.inputs if isinstance(desc, t.BackwardTokenAOTInput)]
    count, expected = len(slots.inputs) - len(tokens), runtime.inputs
    if count != len(expected):
        rule = f"it takes {count} inputs, and AOTAutograd hands over {len(expected)}."
        yield Finding(_CODE, "graph", rule, _REMEDY)
        return
    known = {*expected}
    for position, (desc, handed) in enumerate(zip(slots.inputs, expected)):
        # Another name for the same thing is no harm: what is handed over is known by its place.
        if desc != handed and (desc in known or INPUT_KINDS[type(desc)] is not INPUT_KINDS[type(handed)]):
            yield slots.input_finding(position, _CODE, f"AOTAutograd hands over {handed} in its place.", _REMEDY)


def _tangents(scan: Scan, runtime: t.RuntimeConvention) -> Iterator[Finding]:
    """Outputs whose tangent is handed over, and that have none here; and the other way round."""
    expected = {getattr(tangent, "output", None) for tangent in runtime.tangents}
    for number, desc in enumerate(scan.outputs.descs):
        has = number in scan.tangents
        if has != (desc in expected):
            rule = (
                "AOTAutograd hands over no tangent for it, as it was captured without."
                if has
                else "it requires a gradient, and its tangent, which AOTAutograd hands over, is no input of the graph."
            )
            yield scan.slots.output_finding(scan.outputs.positions[number][0], _CODE, rule, _REMEDY)


def _outputs(scan: Scan, runtime: t.RuntimeConvention) -> Iterator[Finding]:
    """Output lists of another length, and gradients and mutations that aren't in their places."""
    slots, forward = scan.slots, runtime.tokens + sum(runtime.forward_leaves)
    primals = dict.fromkeys(map(base_of, runtime.inputs[: runtime.primal_count]))
    owners = [desc for desc in primals if not isinstance(desc, t.ForwardTokenAOTInput)]
    owner_at = dict(enumerate((o for o, n in zip(owners, runtime.grad_leaves) for _ in range(n)), forward))
    backward = len(owner_at) + sum(isinstance(desc, _BACKWARDS_OWN) for desc in slots.outputs)
    if len(slots.outputs) != forward + backward:
        rule = (
            f"it returns {len(slots.outputs)} values, and AOTAutograd expects {forward} of forward and {backward} of "
        )
        yield Finding(_CODE, "output", rule + "backward.", _REMEDY, slots.output)
        return
    mutated = range(runtime.tokens, runtime.tokens + runtime.mutations)
    for position, desc in enumerate(slots.outputs):
        base = base_of(desc) if desc is not None else None
        owner = base.grad_of if isinstance(base, t.GradAOTOutput) else None
        if owner is not None and owner != owner_at.get(position) and (position < forward or owner in owners):
            what = f"the gradient of {owner_at[position]}" if position in owner_at else "no gradient"
        elif isinstance(base, t.InputMutationAOTOutput) != (position in mutated):
            what = "the new value of a mutated input" if position in mutated else "no new value of a mutated input"
        else:
            continue
        yield slots.output_finding(position, _CODE, f"AOTAutograd expects {what} in its place.", _REMEDY)
