"""Every name taken from torch's private modules, in one place."""

from collections.abc import Hashable

import torch
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

SavedForBackwardsNoVcCheckAOTOutput: type[AOTOutput] | None = getattr(
    _descriptors, "SavedForBackwardsNoVcCheckAOTOutput", None
)
"""Saved without a version counter check; ``None`` before torch 2.13, which brought it."""


def storage_and_geometry(tensor: torch.Tensor) -> Hashable:
    """What two tensors that are the same bytes seen the same way have in common; symbolic sizes are not guarded on."""
    try:
        storage = tensor.untyped_storage()._cdata
    except NotImplementedError:  # Sparse layouts have no storage of their own: only the tensor itself is the same.
        return id(tensor)
    numbers = (*tensor.size(), *tensor.stride(), tensor.storage_offset())
    return storage, tensor.dtype, tuple(n.node.expr if isinstance(n, torch.SymInt) else n for n in numbers)


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
    "storage_and_geometry",
]
