"""DTensor on a mesh of two dimensions: its leaves are the local tensor and the mesh, which is no tensor."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tests.capture import Halves, compiled, fake_mesh, joint, partition
from tests.cases.case import (
    BACKWARD,
    FORWARD,
    JOINT,
    PRESENT,
    A,
    Captured,
    Case,
    P,
    R,
    Table,
    arg,
    grad,
    out,
    param,
    save,
    tangent,
)

LEAVES = "_local_tensor device_mesh"


class _ShardedLinear(nn.Linear):
    """A linear layer, its rows sharded over the second dimension of the mesh, between two functions."""

    def __init__(
        self,
        mesh: DeviceMesh,
        before: Callable[[Any], Any] = lambda x: x,
        after: Callable[[Any], Any] = lambda y: y,
    ) -> None:
        super().__init__(8, 4)
        self.before, self.after = before, after
        placements = [Replicate(), Shard(0)]
        self.weight = nn.Parameter(distribute_tensor(self.weight.detach(), mesh, placements))
        self.bias = nn.Parameter(distribute_tensor(self.bias.detach(), mesh, placements))

    def forward(self, x: torch.Tensor) -> Any:
        return self.after(super().forward(self.before(x)))


def _batch(mesh: DeviceMesh, requires_grad: bool = False) -> torch.Tensor:
    return distribute_tensor(torch.randn(8, 8), mesh, [Shard(0), Replicate()]).requires_grad_(requires_grad)


def _linear() -> Captured:
    with fake_mesh(2, 4) as mesh:
        return joint(_ShardedLinear(mesh), _batch(mesh))


def _input_wants_grad() -> Captured:
    with fake_mesh(2, 4) as mesh:
        return joint(_ShardedLinear(mesh), _batch(mesh, requires_grad=True))


def _local_output() -> Captured:
    with fake_mesh(2, 4) as mesh:
        return joint(_ShardedLinear(mesh, after=lambda y: y.to_local()), _batch(mesh))


def _local_input() -> Captured:
    with fake_mesh(2, 4) as mesh:
        model = _ShardedLinear(mesh, before=lambda x: DTensor.from_local(x, mesh, [Shard(0), Replicate()]))
        return joint(model, torch.randn(4, 8))


def _partitioned() -> Halves:
    with fake_mesh(2, 4) as mesh:
        return partition(joint(_ShardedLinear(mesh), _batch(mesh)))


def _compiled() -> Captured:
    with fake_mesh(2, 4) as mesh:
        return compiled(_ShardedLinear(mesh), _batch(mesh)).joint


CASES = [
    Case(
        "linear",
        "A sharded linear layer: each parameter, gradient and tangent has a local tensor and a mesh.",
        _linear,
        Table(
            JOINT,
            [
                param("weight", LEAVES, grad=PRESENT),
                param("bias", LEAVES, grad=PRESENT),
                arg(0, LEAVES),
                tangent(R(0), LEAVES),
            ],
            [out(0, LEAVES, tangent=True), grad(P("weight"), LEAVES), grad(P("bias"), LEAVES)],
        ),
    ),
    Case(
        "input wants gradient",
        "The input's gradient is sharded as the input is.",
        _input_wants_grad,
        Table(
            JOINT,
            [
                param("weight", LEAVES, grad=PRESENT),
                param("bias", LEAVES, grad=PRESENT),
                arg(0, LEAVES, grad=PRESENT),
                tangent(R(0), LEAVES),
            ],
            [
                out(0, LEAVES, tangent=True),
                grad(P("weight"), LEAVES),
                grad(P("bias"), LEAVES),
                grad(A(0), LEAVES),
            ],
        ),
    ),
    Case(
        "local output",
        "The model returns its local tensor: plain output and tangent, sharded gradients.",
        _local_output,
        Table(
            JOINT,
            [
                param("weight", LEAVES, grad=PRESENT),
                param("bias", LEAVES, grad=PRESENT),
                arg(0, LEAVES),
                tangent(R(0)),
            ],
            [out(0, tangent=True), grad(P("weight"), LEAVES), grad(P("bias"), LEAVES)],
        ),
    ),
    Case(
        "local input",
        "The model wraps a local tensor: plain input, sharded parameters.",
        _local_input,
        Table(
            JOINT,
            [
                param("weight", LEAVES, grad=PRESENT),
                param("bias", LEAVES, grad=PRESENT),
                arg(0),
                tangent(R(0), LEAVES),
            ],
            [out(0, LEAVES, tangent=True), grad(P("weight"), LEAVES), grad(P("bias"), LEAVES)],
        ),
    ),
    Case(
        "partitioned",
        "The weight's gradient needs the input's local tensor and a mesh: backward takes in parts of values.",
        _partitioned,
        [
            Table(
                FORWARD,
                [param("weight", LEAVES), param("bias", LEAVES), arg(0, LEAVES)],
                [out(0, LEAVES), save(0), save(1)],
                saved=["primals_2", "primals_5"],
            ),
            Table(
                BACKWARD,
                [
                    arg(0, "_local_tensor"),
                    param("weight", "device_mesh", grad=PRESENT),
                    tangent(R(0), LEAVES, linked=False),
                ],
                [grad(P("weight"), LEAVES), grad(P("bias"), LEAVES, linked=False)],
                saved=["primals_2", "primals_5"],
            ),
        ],
    ),
    Case(
        "compiled",
        "The same under torch.compile: parameters are arguments there.",
        _compiled,
        Table(
            JOINT,
            [
                arg(0, LEAVES, grad=PRESENT),
                arg(1, LEAVES, grad=PRESENT),
                arg(2, LEAVES),
                tangent(R(0), LEAVES),
            ],
            [out(0, LEAVES, tangent=True), grad(A(0), LEAVES), grad(A(1), LEAVES)],
        ),
    ),
]
