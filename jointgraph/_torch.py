"""Every name taken from torch's private modules, in one place."""

from collections.abc import Hashable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, TypeGuard

import attrs
import torch
from torch import fx
from torch._functorch._aot_autograd import descriptors as _descriptors
from torch._functorch._aot_autograd.descriptors import (
    AOTInput,
    AOTOutput,
    BackwardTokenAOTInput,
    BackwardTokenAOTOutput,
    BufferAOTInput,
    DifferentiableAOTInput,
    DifferentiableAOTOutput,
    DummyAOTInput,
    DummyAOTOutput,
    ForwardTokenAOTInput,
    ForwardTokenAOTOutput,
    GradAOTOutput,
    InputMutationAOTOutput,
    IntermediateBaseAOTOutput,
    MetadataMutationAOTOutput,
    ParamAOTInput,
    PhiloxBackwardBaseOffsetAOTInput,
    PhiloxBackwardSeedAOTInput,
    PhiloxForwardBaseOffsetAOTInput,
    PhiloxForwardSeedAOTInput,
    PhiloxUpdatedBackwardOffsetAOTOutput,
    PhiloxUpdatedForwardOffsetAOTOutput,
    PlainAOTInput,
    PlainAOTOutput,
    SavedForBackwardsAOTOutput,
    SubclassGetAttrAOTInput,
    SubclassGetAttrAOTOutput,
    SubclassSizeAOTInput,
    SubclassSizeAOTOutput,
    SubclassStrideAOTInput,
    SubclassStrideAOTOutput,
    SyntheticBaseAOTInput,
    TangentAOTInput,
    ViewBaseAOTInput,
)
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

SavedForBackwardsNoVcCheckAOTOutput: type[AOTOutput] | None = getattr(
    _descriptors, "SavedForBackwardsNoVcCheckAOTOutput", None
)
"""Saved without a version counter check; ``None`` before torch 2.13, which brought it."""


def captured_arguments(joint: object) -> dict[AOTInput, AOTInput] | None:
    """Every argument of a captured module → the descriptor of the input that carries it.

    That is the argument's own, or that of the same tensor under another name, or of the base that several views were
    replaced by. Torch keeps this in a ``JointWithDescriptors``; ``None`` for anything else.
    """
    capture, state = getattr(joint, "_aot_graph_capture", None), getattr(joint, "_aot_state", None)
    if capture is None or state is None:
        return None
    dedupe = next((wrapper for wrapper in capture.wrappers if hasattr(wrapper, "add_dupe_map")), None)
    merges = "aliased_arg_idx_with_metadata_mutations"
    bases = next((wrapper for wrapper in capture.wrappers if hasattr(wrapper, merges)), None)
    carriers = list(state.flat_args_descs)
    # From the graph's inputs back to the module's arguments: each wrapper lists what its inputs became.
    base_groups = getattr(bases, "base_groups", {})
    if getattr(bases, "needs_post_compile", False) and not base_groups:
        return None  # It merged views, and this torch (2.9, for one) doesn't keep which.
    if base_groups:
        others = getattr(bases, "other_arg_indices", [])
        at = {old: new for new, olds in base_groups.items() for old in olds}
        at |= {old: len(base_groups) + new for new, old in enumerate(others)}
        carriers = [carriers[at[old]] for old in sorted(at)]
    dupes = getattr(dedupe, "add_dupe_map", [])
    if dupes:
        carriers = [carriers[new] for new in dupes]
    arguments: list[AOTInput] = [ParamAOTInput(name) for name in getattr(joint, "params_spec", ())]
    arguments += [BufferAOTInput(name) for name in getattr(joint, "buffers_spec", ())]
    arguments += [PlainAOTInput(idx) for idx in range(len(carriers) - len(arguments))]
    return dict(zip(arguments, carriers))


@attrs.frozen
class RuntimeConvention:
    """What AOTAutograd's runtime wrapper hands to a captured graph, and what it expects back; pinned at capture."""

    inputs: Sequence[AOTInput]
    """The slot descriptor of each placeholder; those of backward tokens, which come after these, are not listed."""
    primal_count: int
    """How many of them come before the tangents."""
    tangents: Sequence[AOTInput]
    """The base descriptors of the tangents."""
    tokens: int
    """How many effect tokens the forward outputs begin with."""
    mutated: Sequence[AOTInput]
    """The inputs whose new values come next."""
    results: int
    """How many results of the user's come after these, metadata mutations included."""
    tensors: Sequence[int]
    """The numbers of the results that are tensors."""
    forward_leaves: Sequence[Sequence[str]]
    """The paths of the slots of each forward output value, tokens aside; a size or a stride has the path ``"?"``."""
    grad_leaves: Sequence[Sequence[str]]
    """Likewise of the gradient of each primal value but tokens."""


def runtime_convention(joint: object) -> RuntimeConvention | None:
    """What AOTAutograd keeps in a ``JointWithDescriptors`` about its graph's interface; ``None`` for anything else."""
    capture, state = getattr(joint, "_aot_graph_capture", None), getattr(joint, "_aot_state", None)
    if capture is None or state is None:
        return None
    meta, subclasses = state.fw_metadata, capture.maybe_subclass_meta
    groups = capture.updated_flat_args_descs if state.needs_autograd else (capture.updated_flat_args_descs, [])
    groups = [group if isinstance(group, list) else [group] for group in groups]
    forward: Sequence[object] = [None] * (
        meta.num_mutated_inp_runtime_indices + meta.num_outputs + meta.num_intermediate_bases
    )
    grads: Sequence[object] = [None] * (len(groups[0]) - len(meta.tokens))
    if subclasses is not None:
        forward, grads = meta.subclass_fw_graph_out_meta, subclasses.grad_input_metas or ()
    offsets = [[""]] * meta.num_outputs_rng_offset
    return RuntimeConvention(
        inputs=list(chain.from_iterable(groups)),
        primal_count=len(groups[0]),
        tangents=meta.traced_tangents_descs if state.needs_autograd else [],
        tokens=len(meta.tokens),
        mutated=[state.flat_args_descs[index] for index in meta.mutated_inp_runtime_indices],
        results=meta.num_outputs,
        tensors=[idx for idx, info in enumerate(meta.output_info) if issubclass(info.raw_type, torch.Tensor)],
        forward_leaves=[*map(_leaves_of, forward), *offsets],
        grad_leaves=[*map(_leaves_of, grads)] if state.needs_autograd else [],
    )


def _leaves_of(meta: object) -> list[str]:
    """The paths of the slots that a value is taken apart into, from AOTAutograd's account of it."""

    def paths(meta: object) -> list[str]:
        attributes: dict[str, object] = getattr(meta, "attrs", {})
        return [
            ".".join(filter(None, [name, path])) for name, inner in attributes.items() for path in paths(inner)
        ] or [""]

    found = paths(meta)
    return found + ["?"] * (getattr(meta, "arg_count", 1) - len(found))


def storage_and_geometry(tensor: torch.Tensor) -> Hashable:
    """What two tensors that are the same bytes seen the same way have in common; symbolic sizes are not guarded on."""
    try:
        storage = tensor.untyped_storage()._cdata
    except NotImplementedError:  # Sparse layouts have no storage of their own: only the tensor itself is the same.
        return id(tensor)
    numbers = (*tensor.size(), *tensor.stride(), tensor.storage_offset())
    return (
        storage,
        tensor.dtype,
        tensor.is_conj(),
        tensor.is_neg(),
        tuple(n.node.expr if isinstance(n, torch.SymInt) else n for n in numbers),
    )


def resize_call(graph: fx.Graph, origins: Sequence[int | None], backward: Sequence[bool], *, outputs: bool) -> None:
    """Have the pytree that a joint graph module takes or returns follow its slots.

    The module takes ``([*primals], [*tangents])`` and returns ``((*forward outputs), (*backward outputs))``. Other
    graphs have a flat list, and need nothing.

    Args:
        graph: the graph.
        origins: for each slot that there is to be, the position of the one that it was; ``None`` for a new one, which
            joins the group of its predecessor, or the second group if it is the first there.
        backward: for each, whether it is of the second group where it could be of either.
        outputs: whether these are outputs.
    """
    codegen: Any = graph._codegen
    info: Any = getattr(codegen, "pytree_info", None)
    spec = None if info is None else info.out_spec if outputs else info.in_spec
    if spec is None:
        return
    groups = list(pytree.tree_unflatten([None] * spec.num_leaves, spec))
    sizes = [len(group) if isinstance(group, (list, tuple)) else 1 for group in groups]
    group_of = [number for number, size in enumerate(sizes) for _ in range(size)]
    counts, last = [0] * len(groups), 0
    for origin, is_backwards in zip(origins, backward):
        if origin is not None:
            last = group_of[origin] if origin < len(group_of) else len(groups) - 1
        elif is_backwards and last == 0:
            last = 1
        counts[last] += 1
    for number, (group, count) in enumerate(zip(groups, counts)):
        if isinstance(group, (list, tuple)):
            groups[number] = type(group)([None] * count)
    field = "out_spec" if outputs else "in_spec"
    codegen.pytree_info = info._replace(**{field: pytree.tree_structure(tuple(groups))})


node_args = attrgetter("_args")
"""A node's ``args``: a new object after every change of them, as long as there are any."""
node_kwargs = attrgetter("_kwargs")
"""A node's ``kwargs``: a new object after every change of ``args`` or ``kwargs`` of a node without ``args``."""
input_nodes = attrgetter("_input_nodes")
"""The nodes that a node reads, as the keys of FX's own dictionary, which must not be changed.

These three are what FX's properties of similar names read. From C they take a fifth of the time.
"""


def placeholder_count(graph: fx.Graph) -> int:
    """How many placeholders a graph has, in constant time."""
    return len(graph._find_nodes_lookup_table.table["placeholder", None])


def is_operator(target: object) -> TypeGuard[OpOverload]:
    """Whether a node's target is an operator with a schema."""
    return isinstance(target, OpOverload)


def aliased_inputs(node: fx.Node) -> Iterator[tuple[object, bool]]:
    """The arguments that an operator writes to or returns views of, as its schema says, each with whether it writes."""
    if is_operator(node.target):
        for position, argument in enumerate(node.target._schema.arguments):
            if argument.alias_info is not None:
                given, name = node.args, argument.name
                value = given[position] if position < len(given) else node.kwargs.get(name)
                yield value, argument.alias_info.is_write


def mutated_arguments(node: fx.Node) -> Sequence[object]:
    """The arguments that an operator writes to, as its schema says; a list of tensors is taken apart."""
    return pytree.tree_leaves([value for value, writes in aliased_inputs(node) if writes])


def returns_alias(node: fx.Node) -> bool:
    """Whether what an operator returns is such arguments or views of them, as its schema says."""
    return is_operator(node.target) and any(one.alias_info is not None for one in node.target._schema.returns)


__all__ = [
    "AOTInput",
    "AOTOutput",
    "BackwardTokenAOTInput",
    "BackwardTokenAOTOutput",
    "BufferAOTInput",
    "DifferentiableAOTInput",
    "DifferentiableAOTOutput",
    "DummyAOTInput",
    "DummyAOTOutput",
    "FakeTensor",
    "FakeTensorMode",
    "ForwardTokenAOTInput",
    "ForwardTokenAOTOutput",
    "GradAOTOutput",
    "InputMutationAOTOutput",
    "IntermediateBaseAOTOutput",
    "MetadataMutationAOTOutput",
    "ParamAOTInput",
    "PhiloxBackwardBaseOffsetAOTInput",
    "PhiloxBackwardSeedAOTInput",
    "PhiloxForwardBaseOffsetAOTInput",
    "PhiloxForwardSeedAOTInput",
    "PhiloxUpdatedBackwardOffsetAOTOutput",
    "PhiloxUpdatedForwardOffsetAOTOutput",
    "PlainAOTInput",
    "PlainAOTOutput",
    "RuntimeConvention",
    "SavedForBackwardsAOTOutput",
    "SavedForBackwardsNoVcCheckAOTOutput",
    "SubclassGetAttrAOTInput",
    "SubclassGetAttrAOTOutput",
    "SubclassSizeAOTInput",
    "SubclassSizeAOTOutput",
    "SubclassStrideAOTInput",
    "SubclassStrideAOTOutput",
    "SyntheticBaseAOTInput",
    "TangentAOTInput",
    "ViewBaseAOTInput",
    "aliased_inputs",
    "captured_arguments",
    "input_nodes",
    "is_operator",
    "mutated_arguments",
    "node_args",
    "node_kwargs",
    "placeholder_count",
    "resize_call",
    "returns_alias",
    "runtime_convention",
    "storage_and_geometry",
]
