"""Every name taken from torch's private modules, in one place."""

from collections.abc import Hashable, Iterator
from operator import attrgetter
from typing import TypeGuard

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


def storage_and_geometry(tensor: torch.Tensor) -> Hashable:
    """What two tensors that are the same bytes seen the same way have in common; symbolic sizes are not guarded on."""
    try:
        storage = tensor.untyped_storage()._cdata
    except NotImplementedError:  # Sparse layouts have no storage of their own: only the tensor itself is the same.
        return id(tensor)
    numbers = (*tensor.size(), *tensor.stride(), tensor.storage_offset())
    return storage, tensor.dtype, tuple(n.node.expr if isinstance(n, torch.SymInt) else n for n in numbers)


node_args = attrgetter("_args")
"""A node's ``args``: a new object after every change of them, as long as there are any."""
node_kwargs = attrgetter("_kwargs")
"""A node's ``kwargs``: a new object after every change of ``args`` or ``kwargs`` of a node without ``args``."""
input_nodes = attrgetter("_input_nodes")
"""The nodes that a node reads, as the keys of FX's own dictionary, which must not be changed.

These three are what FX's properties of similar names read. From C they take a fifth of the time.
"""


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
    "node_args",
    "node_kwargs",
    "returns_alias",
    "storage_and_geometry",
]
