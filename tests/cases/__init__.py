"""The catalogue: one small model for each thing that AOTAutograd can make of a graph's interface."""

from collections.abc import Mapping, Sequence

from tests.cases import dtensor, edges, mutations, nested, partitioned, philox, tied, tokens, two_tensor, views
from tests.cases.case import Case

CATALOGUE: Mapping[str, Sequence[Case]] = {
    "two tensor": two_tensor.CASES,
    "dtensor": dtensor.CASES,
    "nested": nested.CASES,
    "tokens": tokens.CASES,
    "views": views.CASES,
    "mutations": mutations.CASES,
    "partitioned": partitioned.CASES,
    "philox": philox.CASES,
    "tied": tied.CASES,
    "edges": edges.CASES,
}
"""The cases by family."""
