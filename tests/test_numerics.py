"""What the index finds is what eager PyTorch computes."""

import pytest
import torch

from tests import models
from tests.models import Sample
from tests.numerics import run

RTOL, ATOL = 1e-4, 1e-5
"""Single precision: graph and eager mode add up in different orders."""


@pytest.fixture(params=[name for name in models.NAMES if name != "tied"])
def untied(request: pytest.FixtureRequest) -> Sample:
    """Each sample but the one with tied weights, whose gradients are partial."""
    return models.sample(request.param)


def test_gradients_found_through_the_index_are_those_of_eager_mode(untied: Sample) -> None:
    """Run by the index, the graph returns eager autograd's gradient of each input that has one, and no other."""
    result = run(untied)
    assert result.grads.keys() == {desc for desc, grad in result.eager_grads.items() if grad is not None}
    for desc, grad in result.grads.items():
        torch.testing.assert_close(grad, result.eager_grads[desc], rtol=RTOL, atol=ATOL, msg=str(desc))


def test_results_found_through_the_index_are_those_of_eager_mode(any_sample: Sample) -> None:
    """Run by the index, the graph returns the module's results under their numbers, ``None`` and integers too."""
    result = run(any_sample)
    assert result.outputs.keys() == result.eager_outputs.keys()
    for idx, output in result.outputs.items():
        if isinstance(output, torch.Tensor):
            torch.testing.assert_close(output, result.eager_outputs[idx], rtol=RTOL, atol=ATOL)
        else:
            assert output == result.eager_outputs[idx]


def test_mutations_found_through_the_index_are_those_of_eager_mode(batch_norm: Sample) -> None:
    """Run by the index, the graph returns the values that eager mode leaves in the buffers."""
    result = run(batch_norm)
    assert len(result.mutations) == 3
    assert result.mutations.keys() == result.eager_buffers.keys()
    for desc, value in result.mutations.items():
        torch.testing.assert_close(value, result.eager_buffers[desc], rtol=RTOL, atol=ATOL)
