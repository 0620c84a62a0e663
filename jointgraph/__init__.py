"""An index over PyTorch's AOTAutograd joint graphs: every parameter, gradient, output and tangent, found once.

Names are imported when first used, so that ``import jointgraph`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jointgraph.boundary import Boundary, Crossing, CrossingRole
    from jointgraph.carry import copy_descriptors
    from jointgraph.chains import Chain, ChainStop
    from jointgraph.descriptors import GradStatus, GraphKind, InputKind, OutputKind
    from jointgraph.edit import Edit
    from jointgraph.exceptions import (
        EditError,
        JointGraphError,
        MalformedGraphError,
        MissingDescriptorError,
        StaleIndexError,
        SubclassError,
        UnknownNameError,
    )
    from jointgraph.findings import Finding, FindingCode, Severity
    from jointgraph.flow import Flow
    from jointgraph.index import JointGraphIndex
    from jointgraph.leaves import Leaf
    from jointgraph.pairs import InputGrad, OutputTangent
    from jointgraph.phases import Phase
    from jointgraph.records import Input, Output

__all__ = [
    "Boundary",
    "Chain",
    "ChainStop",
    "Crossing",
    "CrossingRole",
    "Edit",
    "EditError",
    "Finding",
    "FindingCode",
    "Flow",
    "GradStatus",
    "GraphKind",
    "Input",
    "InputGrad",
    "InputKind",
    "JointGraphError",
    "JointGraphIndex",
    "Leaf",
    "MalformedGraphError",
    "MissingDescriptorError",
    "Output",
    "OutputKind",
    "OutputTangent",
    "Phase",
    "Severity",
    "StaleIndexError",
    "SubclassError",
    "UnknownNameError",
    "copy_descriptors",
]

_HOMES = {
    "boundary": ("Boundary", "Crossing", "CrossingRole"),
    "carry": ("copy_descriptors",),
    "chains": ("Chain", "ChainStop"),
    "descriptors": ("GradStatus", "GraphKind", "InputKind", "OutputKind"),
    "edit": ("Edit",),
    "exceptions": (
        "EditError",
        "JointGraphError",
        "MalformedGraphError",
        "MissingDescriptorError",
        "StaleIndexError",
        "SubclassError",
        "UnknownNameError",
    ),
    "findings": ("Finding", "FindingCode", "Severity"),
    "flow": ("Flow",),
    "index": ("JointGraphIndex",),
    "leaves": ("Leaf",),
    "pairs": ("InputGrad", "OutputTangent"),
    "phases": ("Phase",),
    "records": ("Input", "Output"),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"jointgraph.{home}"), name)
    raise AttributeError(f"module 'jointgraph' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
