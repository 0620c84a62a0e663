"""Functionalized random numbers: seeds and offsets of the Philox generator.

Torch makes these for CUDA alone. Here the state of the CUDA generator is a stub during capture.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch._functorch import config
from torch._functorch._aot_autograd import descriptors as d

from tests.capture import Halves, joint, partition
from tests.cases.case import (
    BACKWARD,
    FORWARD,
    INFERENCE,
    JOINT,
    PRESENT,
    A,
    Captured,
    Case,
    In,
    Out,
    P,
    R,
    Table,
    arg,
    carried,
    grad,
    out,
    param,
    save,
    tangent,
)
from tests.cases.models import Fn, X, multiply


@contextmanager
def _functionalized() -> Iterator[None]:
    def state(fake_mode: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        with fake_mode or nullcontext():
            return torch.tensor(0), torch.tensor(0)

    with (
        mock.patch("torch._prims_common.CUDARngStateHelper.get_torch_state_as_tuple", staticmethod(state)),
        mock.patch("torch._decomp.decompositions_for_rng.throw_on_non_cuda"),
        config.patch(functionalize_rng_ops=True),
    ):
        yield


def _noise(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x * w * torch.rand_like(x)


def _joint(function: Callable[..., Any]) -> Captured:
    with _functionalized():
        return joint(Fn(function), X)


def _inference() -> Captured:
    with _functionalized(), torch.no_grad():
        return joint(Fn(_noise), X)


def _partitioned() -> Halves:
    with _functionalized():
        return partition(joint(Fn(_noise), X))


FORWARD_SEED, FORWARD_OFFSET = In(d.PhiloxForwardSeedAOTInput()), In(d.PhiloxForwardBaseOffsetAOTInput())
UNUSED_SEED = In(d.PhiloxForwardSeedAOTInput(), used=False)
BACKWARD_STATE = [In(d.PhiloxBackwardSeedAOTInput(), used=False), In(d.PhiloxBackwardBaseOffsetAOTInput())]
FORWARD_UPDATE = Out(d.PhiloxUpdatedForwardOffsetAOTOutput())
BACKWARD_UPDATE = Out(d.PhiloxUpdatedBackwardOffsetAOTOutput(), same_node_as=d.PhiloxBackwardBaseOffsetAOTInput())

CASES = [
    Case(
        "random operator",
        "Random numbers in forward: seed and offset of both passes come after the tangents; backward draws nothing.",
        lambda: _joint(_noise),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0), tangent(R(0)), FORWARD_SEED, FORWARD_OFFSET, *BACKWARD_STATE],
            [out(0, tangent=True), FORWARD_UPDATE, grad(P("w")), BACKWARD_UPDATE],
        ),
    ),
    Case(
        "nothing drawn",
        "No random numbers: each offset goes out as it came in.",
        lambda: _joint(multiply),
        Table(
            JOINT,
            [param("w", grad=PRESENT), arg(0), tangent(R(0)), UNUSED_SEED, FORWARD_OFFSET, *BACKWARD_STATE],
            [
                out(0, tangent=True),
                Out(d.PhiloxUpdatedForwardOffsetAOTOutput(), same_node_as=d.PhiloxForwardBaseOffsetAOTInput()),
                grad(P("w")),
                BACKWARD_UPDATE,
            ],
        ),
    ),
    Case(
        "inference",
        "An inference graph has seed and offset of forward alone.",
        _inference,
        Table(INFERENCE, [param("w"), arg(0), FORWARD_SEED, FORWARD_OFFSET], [out(0), FORWARD_UPDATE]),
    ),
    Case(
        "partitioned",
        "Each half keeps its own state; what was drawn is carried, and the input.",
        _partitioned,
        [
            Table(
                FORWARD,
                [param("w"), arg(0), FORWARD_SEED, FORWARD_OFFSET],
                [out(0), FORWARD_UPDATE, save(0, same_node_as=A(0)), save(1)],
            ),
            Table(
                BACKWARD,
                [arg(0), carried("getitem"), tangent(R(0), linked=False), *BACKWARD_STATE],
                [grad(P("w"), linked=False), BACKWARD_UPDATE],
            ),
        ],
    ),
]
