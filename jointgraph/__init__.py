"""An index over PyTorch's AOTAutograd joint graphs: every parameter, gradient, output and tangent, found once.

Names are imported when first used, so that ``import jointgraph`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jointgraph.boundary import Boundary, Crossing, CrossingRole
    from jointgraph.chains import Chain, ChainStop
    from jointgraph.descriptors import GradStatus, GraphKind, InputKind, OutputKind
    from jointgraph.exceptions import (
        Fault,
        JointGraphError,
        MalformedGraphError,
        MissingDescriptorError,
        StaleIndexError,
        SubclassError,
        UnknownNameError,
    )
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
    "Fault",
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
    "StaleIndexError",
    "SubclassError",
    "UnknownNameError",
]

_HOMES = {
    "boundary": ("Boundary", "Crossing", "CrossingRole"),
    "chains": ("Chain", "ChainStop"),
    "descriptors": ("GradStatus", "GraphKind", "InputKind", "OutputKind"),
    "exceptions": (
        "Fault",
        "JointGraphError",
        "MalformedGraphError",
        "MissingDescriptorError",
        "StaleIndexError",
        "SubclassError",
        "UnknownNameError",
    ),
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
