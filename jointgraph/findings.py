"""What is wrong with a graph, or odd about it: one `Finding` each, with its code and its severity."""

import enum
from collections.abc import Mapping

import attrs
from torch import fx


class Severity(enum.Enum):
    """How bad a finding is."""

    ERROR = "error"
    """The graph is wrong: running it fails or computes something else."""
    WARNING = "warning"
    """A later pass may be misled, though the graph itself computes what it says."""
    NOTE = "note"
    """Legal, and found in many graphs as AOTAutograd captures them; worth knowing."""


class FindingCode(enum.Enum):
    """Which rule a finding is about."""

    OUTPUT_LIST = "output-list"
    """The graph returns one flat list."""
    SLOT_COUNT = "slot-count"
    """The output list is as long as the list of its descriptors."""
    MISSING_DESCRIPTOR = "missing-descriptor"
    """Each slot has a descriptor; only an output entry that is ``None`` may go without."""
    FOREIGN_DESCRIPTOR = "foreign-descriptor"
    """An input is described by an ``AOTInput``, an output by an ``AOTOutput``."""
    DUPLICATE_DESCRIPTOR = "duplicate-descriptor"
    """No two slots have the same descriptor."""
    STRANGER = "stranger"
    """Every gradient belongs to an input of the graph, every tangent to an output."""
    ERASED_NODE = "erased-node"
    """No node reads an erased one."""
    FOREIGN_NODE = "foreign-node"
    """No node reads one of another graph."""
    ORDER = "order"
    """Each node comes after those that it reads."""
    PLACEHOLDER_NAME = "placeholder-name"
    """A joint graph's tangents have ``tangents`` in their names, and no other input has: partitioners go by that."""
    GRADIENT_MISMATCH = "gradient-mismatch"
    """A gradient has the shape, dtype and device of its input."""
    TANGENT_MISMATCH = "tangent-mismatch"
    """A tangent has the shape, dtype and device of its output."""
    RUNTIME_METADATA = "runtime-metadata"
    """The graph takes and returns what AOTAutograd's runtime wrapper hands over and expects."""
    SLOT_MISMATCH = "slot-mismatch"
    """A slot that is to have the descriptor of another graph's is of the same shape, dtype and device."""
    MISSING_VAL = "missing-val"
    """Each node that is read has a ``meta["val"]``."""
    STALE_VAL = "stale-val"
    """A node's ``meta["val"]`` is what its operator makes of its arguments."""
    DEAD_INPUT = "dead-input"
    """An input that nothing reads."""
    NO_TANGENT = "no-tangent"
    """An output that depends on an input with a gradient, and has no tangent: it is detached, or that was lost."""

    PHASE_TAG = "phase-tag"
    """A node tagged ``is_forward`` is not of backward by dataflow, nor one tagged as autograd's of forward."""

    @property
    def severity(self) -> Severity:
        """How bad it is to break this rule."""
        return _MILDER.get(self, Severity.ERROR)


_MILDER: Mapping[FindingCode, Severity] = {
    FindingCode.MISSING_VAL: Severity.WARNING,
    FindingCode.STALE_VAL: Severity.WARNING,
    FindingCode.DEAD_INPUT: Severity.NOTE,
    FindingCode.NO_TANGENT: Severity.NOTE,
    FindingCode.PHASE_TAG: Severity.NOTE,
}
"""The rules that aren't errors to break."""


@attrs.frozen
class Finding:
    """One broken rule."""

    code: FindingCode
    where: str
    """The node or slot, such as ``placeholder primals_3`` or ``output[7] (add_1)``."""
    rule: str
    """What is wrong there, and the rule it breaks."""
    remedy: str
    """What to do about it."""
    node: fx.Node | None = attrs.field(default=None, eq=False)
    """The node; the output node for a slot of the output list, ``None`` for the graph as a whole."""
    around: str = attrs.field(default="", kw_only=True)
    """The neighbourhood: the nodes that it reads and those that read it, or the slots next to it, a line each."""

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return self.code.severity

    def __str__(self) -> str:
        """Everything, in several lines."""
        head = f"{self.severity.value} {self.code.value}, {self.where}: {self.rule} {self.remedy}"
        return "\n    ".join([head, *self.around.splitlines()])
