"""An input with its gradient, and an output with its tangent."""

from typing import Any, NamedTuple

from torch import fx

from jointgraph.descriptors import is_size_or_stride
from jointgraph.exceptions import SubclassError
from jointgraph.leaves import Leaf
from jointgraph.records import Input, Output


class InputGrad(NamedTuple):
    """An input and its gradient."""

    input: Input
    grad: Output | None

    def leaf_pairs(self) -> tuple[tuple[Leaf[fx.Node], Leaf[fx.Node | None]], ...]:
        """The leaves of the input with those of its gradient, matched by path; ``()`` where there is no gradient.

        Sizes and strides, which have no gradient, are left out.

        Raises:
            SubclassError: if the two have other paths; it shows both.
        """
        return () if self.grad is None else _match(self.input, self.grad)


class OutputTangent(NamedTuple):
    """An output and its tangent."""

    output: Output
    tangent: Input | None

    def leaf_pairs(self) -> tuple[tuple[Leaf[fx.Node | None], Leaf[fx.Node]], ...]:
        """The leaves of the output with those of its tangent, matched by path; ``()`` where there is no tangent.

        Sizes and strides, which have no tangent, are left out.

        Raises:
            SubclassError: if the two have other paths; it shows both.
        """
        return () if self.tangent is None else _match(self.output, self.tangent)


def _match(one: Input | Output, other: Input | Output) -> tuple[tuple[Leaf[Any], Leaf[Any]], ...]:
    """Pair the leaves that are no sizes or strides by path."""
    left, right = (
        {path: leaf for path, leaf in side.leaves.items() if not is_size_or_stride(leaf.desc)} for side in (one, other)
    )
    if left.keys() != right.keys():
        raise SubclassError(
            f"{one.desc} has the leaves {[*left]} and {other.desc} has {[*right]}: they don't match one to one. "
            "Pair them by hand, from .leaves of each."
        )
    return tuple((leaf, right[path]) for path, leaf in left.items())
