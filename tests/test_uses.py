"""Who uses a value, seen through views."""

import operator

import torch
from torch import nn

from jointgraph import JointGraphIndex
from tests.capture import compiled, joint
from tests.cases import CATALOGUE
from tests.graphs import copy_of
from tests.models import Sample

aten = torch.ops.aten


def test_a_use_of_a_view_is_a_use_of_the_base(mlp: Sample) -> None:
    """The transposes of a weight are views; the products of forward and backward are its uses."""
    index = mlp.index()
    uses = index.flow.uses(index.params["second.weight"])
    assert [node.target for node in uses] == [aten.addmm.default, aten.mm.default]
    assert [*uses] == sorted(uses)
    assert index.flow.first_use(index.params["second.weight"]) is uses[0]
    assert index.flow.last_use(index.params["second.weight"]) is uses[-1]


class Split(nn.Module):
    """Uses the second half of its argument, a view of it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, second = torch.chunk(x, 2)
        return second.view(-1).sin()


def test_a_part_of_a_split_is_a_view() -> None:
    """The list and its parts are no uses."""
    index = JointGraphIndex(joint(Split(), torch.randn(4, 3)))
    assert [node.target for node in index.flow.uses(index.plain_inputs[0])] == [aten.sin.default]


class Expanded(nn.Module):
    """Has one argument expanded to the shape of another."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.expand_as(y) * 2


class Joined(nn.Module):
    """Uses its argument in a list."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x.view(-1)])


def test_a_value_in_a_list_is_used() -> None:
    """By an operator that makes something new of it; and by one that writes to all in the list."""
    index = JointGraphIndex(copy_of(joint(Joined(), torch.randn(4)).graph_module))
    x = index.plain_inputs[0]
    (joined,) = index.graph.find_nodes(op="call_function", target=aten.cat.default)
    assert index.flow.uses(x) == (joined,)
    with index.graph.inserting_after(joined):
        write = index.graph.call_function(aten._foreach_add_.Scalar, ([x.node], 1))
    assert index.flow.uses(x) == (joined, write)


def test_what_a_writer_returns_beside_is_no_view() -> None:
    """Batch norm writes to the running statistics and returns new tensors."""
    index = JointGraphIndex(copy_of(joint(Joined(), torch.randn(4)).graph_module))
    x = index.plain_inputs[0].node
    with index.graph.inserting_before(index.graph.output_node()):
        norm = index.graph.call_function(aten._native_batch_norm_legit.default, (x, None, None, x, x, True, 0.1, 1e-5))
        result = index.graph.call_function(operator.getitem, (norm, 0))
        index.graph.call_function(aten.neg.default, (result,))
    assert index.flow.last_use(index.plain_inputs[0]) is norm


def test_only_what_is_viewed_is_seen_through() -> None:
    """An operator that returns a view of one argument uses the others."""
    index = JointGraphIndex(joint(Expanded(), torch.randn(3), torch.randn(3)))
    graph = index.graph
    x, y = (index.plain_inputs[number].node for number in (0, 1))
    (product,) = graph.find_nodes(op="call_function", target=aten.mul.Tensor)
    with graph.inserting_before(product):
        view = graph.call_function(aten.view_as.default, (x, y))
    product.args = (view, 2)
    assert index.flow.uses(index.plain_inputs[0]) == (product,)
    assert view in index.flow.uses(index.plain_inputs[1])


def test_a_write_is_a_use_and_its_result_the_value() -> None:
    """The running statistics: forward reads each, then overwrites it; what reads the result uses the value as well."""
    norm = nn.BatchNorm1d(4)
    graph = compiled(lambda x: norm(x).sin(), torch.randn(3, 4)).joint
    assert graph is not None
    index = JointGraphIndex(copy_of(graph))
    writes = index.graph.find_nodes(op="call_function", target=aten.copy_.default)
    written = [record for record in index.inputs.values() if record.node in {write.args[0] for write in writes}]
    assert len(written) == len(writes) == 3
    last = written[-1]
    assert index.flow.uses(last)[-1] is index.flow.last_use(last) is writes[-1]
    with index.graph.inserting_after(writes[-1]):
        reader = index.graph.call_function(aten.neg.default, (writes[-1],))
    assert index.flow.last_use(last) is reader
    assert writes[-1] in index.flow.uses(last)


def test_a_returned_value_is_used_by_the_output_node(many_outputs: Sample) -> None:
    """It is there to the end."""
    index = many_outputs.index()
    assert index.flow.last_use(index.plain_inputs[0]) is index.graph.output_node()
    assert index.flow.uses(index.plain_outputs[1]) == (index.graph.output_node(),)


def test_what_nothing_reads_has_no_use(three_answers: Sample) -> None:
    """Nor has an output that is no node."""
    index = three_answers.index()
    unused = index.params["unused"]
    assert index.flow.uses(unused) == ()
    assert index.flow.first_use(unused) is index.flow.last_use(unused) is None
    many = [output for output in index.outputs.values() if output.node is None]
    assert many
    assert all(index.flow.uses(output) == () for output in many)


def test_the_uses_of_a_subclass_are_those_of_its_leaves() -> None:
    """Together, in graph order; each leaf tells its own."""
    (case, *_) = CATALOGUE["two tensor"]
    index = JointGraphIndex(case.graphs[0])
    record = next(record for record in index.inputs.values() if len(record.nodes) > 1)
    by_leaf = [index.flow.uses(leaf) for leaf in record.leaves.values()]
    assert all(by_leaf)
    assert [*index.flow.uses(record)] == sorted({use for uses in by_leaf for use in uses})
