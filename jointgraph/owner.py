"""What a record asks of the interface that gave it out."""

from collections.abc import Sequence
from typing import Any, Protocol

from jointgraph.scan import Scan


class Owner(Protocol):
    """The interface, as its records see it."""

    scan: Scan
    """The last reading of the graph."""
    last_change: str
    """What made it read the graph again."""

    def input_record(self, number: int | None) -> Any:
        """The record of an input value, if there is such a value and it is kept."""

    def output_record(self, number: int | None) -> Any:
        """The record of an output value, if there is such a value and it is kept."""

    def verify_inputs(self) -> None:
        """Read the graph again if its placeholders changed, which numbers all records anew."""

    def verify_outputs(self) -> None:
        """Read the graph again if its output list changed, which numbers all records anew."""

    def adopt_equal(self) -> None:
        """Take descriptors over that are equal to those that were read, and other objects."""

    def alias_numbers(self, number: int) -> Sequence[int]:
        """The other inputs with the storages and the geometry of one."""
