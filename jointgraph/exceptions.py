"""Every exception that jointgraph raises.

::

    JointGraphError
    ├── MalformedGraphError   (AssertionError, KeyError)  the graph breaks a rule
    │   └── MissingDescriptorError                        ... a slot has no descriptor
    ├── UnknownNameError      (KeyError)                  no such name or descriptor here
    ├── SubclassError         (RuntimeError)              one node was asked for, there are several
    └── StaleIndexError       (RuntimeError)              the graph changed under the index

The built-in bases are what torch's ``fx_utils`` raises in the same place, so code that catches those keeps working.
"""

from collections.abc import Sequence
from itertools import zip_longest

import attrs


class JointGraphError(Exception):
    """The base of all errors of this library."""

    def __str__(self) -> str:
        """The message itself (``KeyError`` alone would show its repr)."""
        return str(self.args[0]) if self.args else ""


@attrs.frozen
class Fault:
    """One broken rule in a graph's calling convention."""

    where: str
    """The node or slot, such as ``placeholder primals_3`` or ``output[7] (add_1)``."""
    rule: str
    """What is wrong there, and the rule it breaks."""
    remedy: str
    """What to do about it."""
    missing_descriptor: bool = False
    """Whether the fault is that a slot has no descriptor."""


class MalformedGraphError(JointGraphError, AssertionError, KeyError):
    """The graph breaks a rule that every joint graph keeps.

    Torch's functions raise ``AssertionError`` for some of these, ``KeyError`` for others, and answer wrongly for the
    rest; this is both.

    Attributes:
        faults: every fault found, in graph order.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        """Show every one of ``faults`` in one message."""
        self.faults = tuple(faults)
        count = "1 fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
        lines = ""
        for fault, following in zip_longest(self.faults, self.faults[1:]):
            lines += f"\n  - {fault.where}: {fault.rule}"
            if following is None or following.remedy != fault.remedy:
                lines += f" {fault.remedy}"
        super().__init__(f"This is no graph that jointgraph can index ({count}):{lines}")


class MissingDescriptorError(MalformedGraphError):
    """A slot has no descriptor in ``meta["desc"]``. The ``faults`` hold all other faults of the graph as well."""


class UnknownNameError(JointGraphError, KeyError):
    """A name or a descriptor that the index has no record of.

    Attributes:
        key: what was asked for.
        close_matches: known names or descriptors that look like it, best first.
    """

    def __init__(self, message: str, key: object, close_matches: Sequence[object] = ()) -> None:
        """Keep ``key`` and ``close_matches`` beside the message."""
        self.key = key
        self.close_matches = tuple(close_matches)
        super().__init__(message)


class SubclassError(JointGraphError, RuntimeError):
    """One node or position was asked for where a tensor subclass has several, or leaves don't match one to one."""


class StaleIndexError(JointGraphError, RuntimeError):
    """The graph's calling convention changed so that the question has no answer in the new graph."""


def malformed(faults: Sequence[Fault]) -> MalformedGraphError:
    """The error for ``faults``: a `MissingDescriptorError` if any of them is a missing descriptor."""
    kind = MissingDescriptorError if any(fault.missing_descriptor for fault in faults) else MalformedGraphError
    return kind(faults)
