"""Every exception that jointgraph raises.

::

    JointGraphError
    ├── MalformedGraphError   (AssertionError, KeyError)  the graph breaks a rule
    │   └── MissingDescriptorError                        ... a slot has no descriptor
    ├── UnknownNameError      (KeyError)                  no such name or descriptor here
    ├── SubclassError         (RuntimeError)              one node was asked for, there are several
    ├── StaleIndexError       (RuntimeError)              the graph changed under the index
    └── EditError             (ValueError)                an edit was refused

Where torch's ``fx_utils`` raises in the same place, a built-in base is what it raises there, so code that catches that
keeps working.
"""

from collections.abc import Sequence
from itertools import zip_longest

from jointgraph.findings import Finding, FindingCode


class JointGraphError(Exception):
    """The base of all errors of this library."""

    def __str__(self) -> str:
        """The message itself (``KeyError`` alone would show its repr)."""
        return str(self.args[0]) if self.args else ""


class MalformedGraphError(JointGraphError, AssertionError, KeyError):
    """The graph breaks a rule that every joint graph keeps.

    Torch's functions raise ``AssertionError`` for some of these, ``KeyError`` for others, and answer wrongly for the
    rest; this is both.

    Attributes:
        findings: every fault found, in graph order.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        """Show every one of ``findings`` in one message."""
        self.findings = tuple(findings)
        super().__init__(f"This is no graph that jointgraph can index {listed(findings)}")


class MissingDescriptorError(MalformedGraphError):
    """A slot has no descriptor in ``meta["desc"]``. The ``findings`` hold all other faults of the graph as well."""


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


class EditError(JointGraphError, ValueError):
    """A step of an edit was refused, and has changed nothing; or what the steps made of the graph breaks a rule.

    Attributes:
        findings: the rules that the edited graph breaks; ``()`` for a refused step.
    """

    def __init__(self, message: str, findings: Sequence[Finding] = ()) -> None:
        """Keep ``findings`` beside the message."""
        self.findings = tuple(findings)
        super().__init__(message)


def malformed(findings: Sequence[Finding]) -> MalformedGraphError:
    """The error for ``findings``: a `MissingDescriptorError` if any of them is a missing descriptor."""
    codes = {finding.code for finding in findings}
    return (MissingDescriptorError if FindingCode.MISSING_DESCRIPTOR in codes else MalformedGraphError)(findings)


def listed(findings: Sequence[Finding]) -> str:
    """How many findings there are, and then each on a line; a remedy that serves several in a row stands once."""
    lines = "(1 fault):" if len(findings) == 1 else f"({len(findings)} faults):"
    for finding, following in zip_longest(findings, findings[1:]):
        lines += f"\n  - {finding.where}: {finding.rule}"
        if following is None or following.remedy != finding.remedy:
            lines += f" {finding.remedy}"
    return lines
