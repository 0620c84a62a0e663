"""What a descriptor says: its kind, the value it belongs to, and the leaf of that value."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from jointgraph import _torch as t

_E = TypeVar("_E", bound=enum.Enum)


class GraphKind(enum.Enum):
    """Which of AOTAutograd's graphs a graph is, told from its placeholders and outputs alone."""

    JOINT = "joint"
    """Forward and backward in one graph: tangents or gradients beside forward outputs."""
    FORWARD = "forward"
    """The forward half out of a partitioner: it has outputs saved for backward."""
    BACKWARD = "backward"
    """The backward half out of a partitioner: tangents or gradients, and no forward output."""
    INFERENCE = "inference"
    """No tangent, no gradient, nothing saved. A forward half that saves nothing looks just so, and is called this."""


class InputKind(enum.Enum):
    """What an input is to the captured program."""

    PARAM = "param"
    BUFFER = "buffer"
    PLAIN = "plain"
    """A flat argument of the user's (a tensor, an int, ``None``)."""
    TANGENT = "tangent"
    """The incoming gradient of a forward output."""
    VIEW_BASE = "view base"
    """The true base of several inputs that are views of one tensor, in their place."""
    SYNTHETIC_BASE = "synthetic base"
    """A base that AOTAutograd made up for several inputs that share a storage, in their place."""
    SAVED = "saved"
    """An activation, made by the forward graph, that a backward graph takes in; torch gives it no descriptor."""
    TOKEN = "token"  # noqa: S105  # An effect token is no password.
    """An effect token, which orders side effects."""
    PHILOX = "philox"
    """A seed or an offset of functionalized random numbers."""
    DUMMY = "dummy"
    OTHER = "other"
    """A descriptor class that jointgraph does not know."""


class OutputKind(enum.Enum):
    """What an output is to the captured program."""

    PLAIN = "plain"
    """A flat result of the user's."""
    GRAD = "grad"
    """The gradient of an input."""
    INPUT_MUTATION = "input mutation"
    """The new value of an input that the program mutated."""
    METADATA_MUTATION = "metadata mutation"
    """An input whose sizes or strides the program mutated, and that shares a storage with another."""
    INTERMEDIATE_BASE = "intermediate base"
    """The base of several outputs that alias each other."""
    SAVED = "saved"
    """A value that a forward graph hands to its backward graph."""
    TOKEN = "token"  # noqa: S105  # An effect token is no password.
    PHILOX = "philox"
    DUMMY = "dummy"
    OTHER = "other"
    """A descriptor class that jointgraph does not know."""


class GradStatus(enum.Enum):
    """The three answers to "does this input have a gradient?"; torch's functions tell only the first from the rest."""

    PRESENT = "present"
    """The graph computes it."""
    MISSING = "missing"
    """The input asked for one and none came, as it is unused or detached: ``None`` under a ``GradAOTOutput``."""
    NOT_REQUESTED = "not requested"
    """The input asked for none (frozen, integer, ...), or the graph has no gradients, or the index leaves it out."""


@dataclass(frozen=True)
class SavedForBackwardsAOTInput(t.AOTInput):
    """The descriptor that jointgraph files a backward graph's saved activation under, since torch gives it none.

    It is never written to the graph. It stands opposite torch's ``SavedForBackwardsAOTOutput`` of the forward graph,
    whose node has the same name.
    """

    name: str
    """The placeholder's node name."""

    def expr(self) -> str:
        """A readable form, in the manner of torch's descriptors."""
        return f"__saved_for_backwards({self.name!r})"


class _KindTable(dict[type, _E]):
    """Descriptor class → kind. A class that isn't listed has the kind of its nearest listed base, else OTHER."""

    def __init__(self, kinds: Mapping[type, _E], other: _E) -> None:
        super().__init__(kinds)
        self._listed = dict(kinds)
        self._other = other

    def __missing__(self, cls: type) -> _E:
        kind = next((self._listed[base] for base in cls.__mro__ if base in self._listed), self._other)
        self[cls] = kind
        return kind


INPUT_KINDS = _KindTable(
    {
        t.ParamAOTInput: InputKind.PARAM,
        t.BufferAOTInput: InputKind.BUFFER,
        t.PlainAOTInput: InputKind.PLAIN,
        t.TangentAOTInput: InputKind.TANGENT,
        t.ViewBaseAOTInput: InputKind.VIEW_BASE,
        t.SyntheticBaseAOTInput: InputKind.SYNTHETIC_BASE,
        SavedForBackwardsAOTInput: InputKind.SAVED,
        t.ForwardTokenAOTInput: InputKind.TOKEN,
        t.BackwardTokenAOTInput: InputKind.TOKEN,
        t.PhiloxForwardSeedAOTInput: InputKind.PHILOX,
        t.PhiloxForwardBaseOffsetAOTInput: InputKind.PHILOX,
        t.PhiloxBackwardSeedAOTInput: InputKind.PHILOX,
        t.PhiloxBackwardBaseOffsetAOTInput: InputKind.PHILOX,
        t.DummyAOTInput: InputKind.DUMMY,
    },
    InputKind.OTHER,
)
"""The kind of every base descriptor class of an input; any class may be looked up."""

OUTPUT_KINDS = _KindTable(
    {
        t.PlainAOTOutput: OutputKind.PLAIN,
        t.GradAOTOutput: OutputKind.GRAD,
        t.InputMutationAOTOutput: OutputKind.INPUT_MUTATION,
        t.MetadataMutationAOTOutput: OutputKind.METADATA_MUTATION,
        t.IntermediateBaseAOTOutput: OutputKind.INTERMEDIATE_BASE,
        t.SavedForBackwardsAOTOutput: OutputKind.SAVED,
        t.ForwardTokenAOTOutput: OutputKind.TOKEN,
        t.BackwardTokenAOTOutput: OutputKind.TOKEN,
        t.PhiloxUpdatedForwardOffsetAOTOutput: OutputKind.PHILOX,
        t.PhiloxUpdatedBackwardOffsetAOTOutput: OutputKind.PHILOX,
        t.DummyAOTOutput: OutputKind.DUMMY,
    }
    | ({t.SavedForBackwardsNoVcCheckAOTOutput: OutputKind.SAVED} if t.SavedForBackwardsNoVcCheckAOTOutput else {}),
    OutputKind.OTHER,
)
"""The kind of every base descriptor class of an output; any class may be looked up."""

_ATTRIBUTE = (t.SubclassGetAttrAOTInput, t.SubclassGetAttrAOTOutput)
_SIZE = (t.SubclassSizeAOTInput, t.SubclassSizeAOTOutput)
_STRIDE = (t.SubclassStrideAOTInput, t.SubclassStrideAOTOutput)
SUBCLASS_LAYERS = _ATTRIBUTE + _SIZE + _STRIDE
"""The descriptor classes that say which part of a tensor subclass a slot is."""


def base_of(desc: t.AOTInput | t.AOTOutput) -> t.AOTInput | t.AOTOutput:
    """``desc`` with its subclass layers taken off; a plain descriptor is its own base."""
    while isinstance(desc, SUBCLASS_LAYERS):
        desc = desc.base
    return desc


def leaf_path(desc: t.AOTInput | t.AOTOutput) -> str:
    """Which leaf of its value ``desc`` names: ``"a"``, ``"a.b"``, ``"size(0)"``; ``""`` for a plain value."""
    steps = []
    while isinstance(desc, SUBCLASS_LAYERS):
        if isinstance(desc, _ATTRIBUTE):
            steps.append(desc.attr)
        else:
            steps.append(f"{'size' if isinstance(desc, _SIZE) else 'stride'}({desc.idx})")
        desc = desc.base
    return ".".join(reversed(steps))


def is_size_or_stride(desc: t.AOTInput | t.AOTOutput) -> bool:
    """Whether ``desc`` names a size or a stride of a tensor subclass, not a tensor in it."""
    return isinstance(desc, _SIZE + _STRIDE)


def substituted(desc: Any, replacements: Mapping[Any, Any]) -> Any:
    """A descriptor with each one in it, itself included, that has a replacement replaced by it."""
    if desc in replacements:
        return replacements[desc]
    inner = {field.name: getattr(desc, field.name) for field in fields(desc)} if is_dataclass(desc) else {}
    found = {
        name: substituted(one, replacements)
        for name, one in inner.items()
        if isinstance(one, (t.AOTInput, t.AOTOutput))
    }
    return replace(cast(Any, desc), **found) if found else desc


def name_of(desc: t.AOTInput | t.AOTOutput) -> str:
    """The fully qualified name (``desc.target``), a saved activation's node name, else ``desc.expr()``."""
    target = getattr(desc, "target", None)  # A user's own class for parameters has it, too.
    if isinstance(target, str):
        return target
    if isinstance(desc, SavedForBackwardsAOTInput):
        return desc.name
    try:
        return desc.expr()
    except NotImplementedError:  # From the base classes; a user's own class may leave it so.
        return str(desc)


OF_BACKWARD_INPUTS = (t.BackwardTokenAOTInput, t.PhiloxBackwardSeedAOTInput, t.PhiloxBackwardBaseOffsetAOTInput)
"""The descriptor classes of inputs that only backward takes, beside tangents: its own tokens and seeds."""

OF_BACKWARD_OUTPUTS = (t.BackwardTokenAOTOutput, t.PhiloxUpdatedBackwardOffsetAOTOutput)
"""The descriptor classes of outputs that only backward returns, beside gradients."""


def is_carried(desc: t.AOTInput, kind: InputKind) -> bool:
    """Whether a backward graph gets this input from the forward graph: no tangent, and no token or seed of its own."""
    return kind is not InputKind.TANGENT and not isinstance(desc, OF_BACKWARD_INPUTS)
