"""The line from an input forward and from an output back, and why it ends."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._functorch._aot_autograd import descriptors as d
from torch.distributed.device_mesh import DeviceMesh

from jointgraph import Chain, ChainStop, JointGraphError, JointGraphIndex, SubclassError
from tests.capture import fake_mesh, joint
from tests.cases import CATALOGUE
from tests.graphs import entries, set_outputs
from tests.models import Sample

aten, c10d = torch.ops.aten, torch.ops._c10d_functional


class Gather(torch.autograd.Function):
    """Gathers the shards of all processes; the gradients are summed and scattered."""

    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor, mesh: DeviceMesh) -> Any:
        ctx.group = mesh.get_group().group_name
        return c10d.wait_tensor(c10d.all_gather_into_tensor(shard, 2, ctx.group))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return c10d.wait_tensor(c10d.reduce_scatter_tensor(grads[0], "sum", 2, ctx.group)), None


class Sharded(nn.Module):
    """A product with a weight that is kept in shards and in another dtype, as FSDP does."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh = mesh
        self.shard = nn.Parameter(torch.randn(4, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        full: torch.Tensor = Gather.apply(self.shard.bfloat16(), self.mesh)  # type: ignore[no-untyped-call]
        return x @ full.view(8, 8)


@pytest.fixture
def sharded() -> Iterator[JointGraphIndex]:
    """The joint graph of a sharded product."""
    with fake_mesh(2) as mesh:
        yield JointGraphIndex(joint(Sharded(mesh), torch.randn(3, 8).bfloat16()))


def targets(chain: Chain) -> list[object]:
    """The operators of a chain."""
    return [node.target for node in chain.nodes]


def test_the_cast_after_a_parameter(sharded: JointGraphIndex) -> None:
    """Going through casts alone, the chain ends before what is no cast."""
    chain = sharded.flow.chain(sharded.params["shard"], through={aten._to_copy.default})
    assert targets(chain) == [aten._to_copy.default]
    assert chain.stop is ChainStop.NOT_ALLOWED
    assert [node.target for node in chain.at] == [c10d.all_gather_into_tensor.default]


def test_all_gather_wait_view(sharded: JointGraphIndex) -> None:
    """The whole line from a shard to the first product, where it meets the argument."""
    chain = sharded.flow.chain(sharded.params["shard"])
    assert targets(chain) == [
        aten._to_copy.default,
        c10d.all_gather_into_tensor.default,
        c10d.wait_tensor.default,
        aten.view.default,
    ]
    assert chain.stop is ChainStop.SEVERAL_INPUTS
    assert [node.target for node in chain.at] == [aten.mm.default]


def test_reduce_scatter_wait_before_a_gradient(sharded: JointGraphIndex) -> None:
    """Back from the gradient, in graph order, up to what is none of the three."""
    grad = sharded.params["shard"].grad
    assert grad is not None
    chain = sharded.flow.chain(grad, through={c10d.reduce_scatter_tensor, c10d.wait_tensor, aten._to_copy})
    assert targets(chain) == [c10d.reduce_scatter_tensor.default, c10d.wait_tensor.default, aten._to_copy.default]
    assert chain.nodes[-1] is grad.node
    assert chain.stop is ChainStop.NOT_ALLOWED
    assert [node.target for node in chain.at] == [aten.view.default]


def test_through_may_be_a_function(sharded: JointGraphIndex) -> None:
    """It is asked about each next node."""
    chain = sharded.flow.chain(sharded.params["shard"], through=lambda node: node.target is not aten.view.default)
    assert len(chain.nodes) == 3
    assert chain.stop is ChainStop.NOT_ALLOWED


def test_several_users_end_a_chain(transformer: Sample) -> None:
    """Forward uses the transposed weight, and backward."""
    index = transformer.index()
    chain = index.flow.chain(index.params["linear1.weight"])
    assert targets(chain) == [aten.t.default]
    assert chain.stop is ChainStop.SEVERAL_USERS
    assert chain.at == (*chain.nodes[0].users,)


def test_back_from_an_output_a_node_with_several_users_is_left_out(transformer: Sample) -> None:
    """A bias's gradient is a view of a sum of what the weight's gradient is made of as well."""
    index = transformer.index()
    grad = index.params["linear1.bias"].grad
    assert grad is not None
    chain = index.flow.chain(grad)
    assert targets(chain) == [aten.sum.dim_IntList, aten.view.default]
    assert chain.stop is ChainStop.SEVERAL_USERS
    assert chain.at == (*chain.nodes[0].all_input_nodes,)
    assert len(chain.at[0].users) > 1


def test_an_input_that_is_only_returned(many_outputs: Sample) -> None:
    """The chain reaches the output from the input, and the input from the output, over no node."""
    index = JointGraphIndex(many_outputs.copy())
    output, result, x = index.graph.output_node(), index.plain_outputs[5], index.plain_inputs[0]
    for user in [*x.node.users]:
        if user is not output:
            with index.graph.inserting_before(user):
                user.replace_input_with(x.node, index.graph.call_function(aten.ones.default, ([2, 3],)))
    assert index.flow.chain(x) == Chain((), ChainStop.OUTPUT, (output,))
    assert index.flow.chain(result) == Chain((), ChainStop.INPUT, (x.node,))


def test_an_input_that_nothing_reads(three_answers: Sample) -> None:
    """Its chain is empty."""
    index = three_answers.index()
    assert index.flow.chain(index.params["unused"]) == Chain((), ChainStop.UNUSED, ())


def test_an_output_that_is_no_node(many_outputs: Sample) -> None:
    """``None`` and constants come from no node."""
    index = many_outputs.index()
    assert index.flow.chain(index.plain_outputs[3]) == Chain((), ChainStop.NO_NODE, ())
    assert index.flow.chain(index.plain_outputs[4]) == Chain((), ChainStop.NO_NODE, ())


def test_an_output_made_from_nothing(mlp: Sample) -> None:
    """Back from zeros there is nothing to go on to."""
    index = JointGraphIndex(mlp.copy())
    values = entries(index.graph)
    with index.graph.inserting_before(index.graph.output_node()):
        zeros = index.graph.call_function(aten.zeros.default, ([2],))
        doubled = index.graph.call_function(aten.mul.Tensor, (zeros, 2))
    set_outputs(index.graph, [doubled, *values[1:]], index.graph.output_node().meta["desc"])
    assert index.flow.chain(index.plain_outputs[0]) == Chain((doubled,), ChainStop.NO_INPUTS, (zeros,))


def test_a_subclass_has_a_chain_for_each_leaf() -> None:
    """Its record has no single node; a leaf has."""
    (case, *_) = CATALOGUE["two tensor"]
    index = JointGraphIndex(case.graphs[0])
    record = next(record for record in index.inputs.values() if len(record.nodes) > 1)
    with pytest.raises(SubclassError, match="leaves"):
        index.flow.chain(record)
    for leaf in record.leaves.values():
        assert index.flow.chain(leaf).stop is not ChainStop.UNUSED


def test_a_chain_is_that_of_the_graph_now(mlp: Sample) -> None:
    """A node put in front of all users of a parameter is the first of its chain."""
    index = JointGraphIndex(mlp.copy())
    bias = index.params["first.bias"]
    with index.graph.inserting_after(bias.node):
        new = index.graph.call_function(aten.neg.default, (bias.node,))
    bias.node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    assert index.flow.chain(bias).nodes == (new,)


def test_records_of_another_index_are_refused(mlp: Sample) -> None:
    """And their leaves."""
    index, other = mlp.index(), mlp.index()
    for stranger in (other.params["first.weight"], other[d.PlainAOTOutput(0)].leaves[""]):
        with pytest.raises(JointGraphError, match="is of another index"):
            index.flow.chain(stranger)
