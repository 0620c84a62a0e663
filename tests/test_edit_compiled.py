"""Edited graphs compiled by AOTAutograd, whose gradients are compared with eager mode's."""

import copy
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_compile_joint_with_descriptors, aot_export_joint_with_descriptors

from jointgraph import JointGraphIndex, Severity
from tests.capture import default_partition, min_cut_rematerialization_partition, torchs_own_warnings

aten, prims = torch.ops.aten, torch.ops.prims


class Net(nn.Module):
    """A convolution, a batch norm that mutates its buffers, a frozen and an unused parameter; two results."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)
        self.frozen = nn.Parameter(torch.randn(5), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(self.conv(x)).relu().mean((2, 3))
        return self.head(y) * self.frozen, y


def scaled(node: fx.Node) -> fx.Node:
    """Builds a multiplication by two."""
    return node.graph.call_function(aten.mul.Tensor, (node, 2.0))


def rounded(node: fx.Node) -> fx.Node:
    """Builds a cast to half precision, and back."""
    half = node.graph.call_function(prims.convert_element_type.default, (node, torch.bfloat16))
    return node.graph.call_function(prims.convert_element_type.default, (half, torch.float32))


def interpreted(module: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    """Compiles nothing."""
    return make_boxed_func(module.forward)


def by_inductor(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """Compiles to machine code."""
    from torch._inductor.compile_fx import compile_fx_inner  # noqa: PLC0415  # Importing it warns.

    compiled: Callable[..., Any] = compile_fx_inner(module, inputs)
    return compiled


def decompositions() -> dict[Any, Any]:
    """Inductor's."""
    from torch._inductor.decomposition import select_decomp_table  # noqa: PLC0415  # Importing it warns.

    return select_decomp_table()


def gradients(outputs: Sequence[torch.Tensor], params: Sequence[torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
    """Those of a loss that weighs the results differently."""
    loss = torch.stack([(number + 1) * output.square().sum() for number, output in enumerate(outputs)]).sum()
    wanted = [param for param in params if param.requires_grad]
    return torch.autograd.grad(loss, wanted, allow_unused=True)


@pytest.mark.parametrize(
    ("partitioner", "compiler", "tolerance"),
    [
        pytest.param(default_partition, interpreted, 1e-4, id="default partition"),
        pytest.param(min_cut_rematerialization_partition, interpreted, 1e-4, id="min-cut"),
        # Inductor takes a cast and its reverse for nothing, so that weights aren't rounded: within their precision.
        pytest.param(min_cut_rematerialization_partition, by_inductor, 3e-2, id="min-cut, Inductor"),
    ],
)
def test_casts_and_scalings_reach_the_compiled_function(
    partitioner: Callable[..., Any], compiler: Callable[..., Any], tolerance: float
) -> None:
    """With every parameter rounded and every gradient doubled, it returns eager mode's results on rounded weights.

    Absolute and relative tolerance are the same.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net, x = Net(), torch.randn(2, 3, 6, 6)
    eager = copy.deepcopy(net)
    with ExitStack() as stack, torchs_own_warnings():
        joint = aot_export_joint_with_descriptors(stack, net, (x,), decompositions=decompositions())
        index = JointGraphIndex(joint)
        with index.edit() as edit:
            edit.wrap(index.params.values(), rounded)
            edit.wrap(index.grads.values(), scaled)
        assert [str(finding) for finding in index.check(joint) if finding.severity is not Severity.NOTE] == []
        compiled = aot_compile_joint_with_descriptors(
            joint, partition_fn=partitioner, fw_compiler=compiler, bw_compiler=compiler
        )
    with torchs_own_warnings():
        outputs = compiled(*net.parameters(), *net.buffers(), x)
        grads = gradients(outputs, [*net.parameters()])

    with torch.no_grad():
        for param in eager.parameters():
            param.copy_(param.bfloat16().float())
    eager_outputs = eager(x)
    eager_grads = gradients(eager_outputs, [*eager.parameters()])
    for found, expected in zip(outputs, eager_outputs, strict=True):
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    for grad, eager_grad in zip(grads, eager_grads, strict=True):
        doubled = None if eager_grad is None else 2 * eager_grad
        torch.testing.assert_close(grad, doubled, rtol=tolerance, atol=tolerance)
    for buffer, eager_buffer in zip(net.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(buffer, eager_buffer, rtol=tolerance, atol=tolerance)
    assert [grad is None for grad in grads].count(True) == 1  # The unused parameter's.
