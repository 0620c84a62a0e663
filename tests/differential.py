"""jointgraph's nine functions held against torch's, on one graph."""

from typing import Any

import pytest
from torch import fx
from torch._functorch._aot_autograd import fx_utils as torchs

from jointgraph import JointGraphIndex
from jointgraph import fx_utils as ours

NAMES = ours.__all__


def check_same_answers(graph: fx.Graph) -> None:
    """Assert that each function has the same keys in the same order and the same nodes, or fails as torch's does."""
    for argument in (graph, JointGraphIndex(graph)):
        for name in NAMES:
            _check_same_answer(name, graph, argument)


def _check_same_answer(name: str, graph: fx.Graph, argument: fx.Graph | JointGraphIndex) -> None:
    function = getattr(ours, name)
    try:
        expected = getattr(torchs, name)(graph)
    except Exception as error:  # Whatever torch raises, ours must raise a kind of.
        with pytest.raises(type(error)):
            function(argument)
        return
    answer = function(argument)
    assert type(answer) is type(expected), name
    if isinstance(expected, dict):
        assert list(answer) == list(expected), name
        answer, expected = answer.values(), expected.values()
    assert all(map(_identical, answer, expected)), name
    assert len(answer) == len(expected), name


def _identical(one: Any, other: Any) -> bool:
    """Whether two nodes, or two pairs of nodes, are the same objects."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_identical, one, other))
    return one is other
