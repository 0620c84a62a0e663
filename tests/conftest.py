"""Captured graphs as fixtures, each captured once in a session; see `tests.models`."""

import pytest

from tests import models
from tests.models import Sample


@pytest.fixture(params=models.NAMES)
def any_sample(request: pytest.FixtureRequest) -> Sample:
    """Each sample in turn."""
    return models.sample(request.param)


@pytest.fixture
def mlp() -> Sample:
    """Two linear layers: parameters ``first.weight``, ``first.bias``, ``second.weight``, ``second.bias``."""
    return models.sample("mlp")


@pytest.fixture
def batch_norm() -> Sample:
    """A convolution and a batch norm in training: three buffers of ``norm`` are mutated."""
    return models.sample("batch_norm")


@pytest.fixture
def tied() -> Sample:
    """``embed.weight`` and ``head.weight`` are one tensor."""
    return models.sample("tied")


@pytest.fixture
def three_answers() -> Sample:
    """Parameters ``used``, ``unused``, ``detached`` and ``frozen``."""
    return models.sample("three_answers")


@pytest.fixture
def many_outputs() -> Sample:
    """Results 0 and 2 are one tensor, 1 a sum, 3 is ``None``, 4 is 7, 5 is the argument, 6 has no gradient."""
    return models.sample("many_outputs")


@pytest.fixture
def grad_inputs() -> Sample:
    """Argument 0 has a gradient, 1 asks for none, 2 asks for one and is detached."""
    return models.sample("grad_inputs")


@pytest.fixture
def arguments() -> Sample:
    """Arguments: a tensor, 3, ``None``, and by keyword a tensor and ``True``."""
    return models.sample("arguments")


@pytest.fixture
def inference() -> Sample:
    """The MLP with all parameters frozen: an inference graph."""
    return models.sample("inference")


@pytest.fixture
def transformer() -> Sample:
    """One encoder layer."""
    return models.sample("transformer")


@pytest.fixture
def llama() -> Sample:
    """A Llama of two layers."""
    return models.sample("llama")
