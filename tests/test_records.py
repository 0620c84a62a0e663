"""`Input` and `Output`: what a record says of its value, and the links between records."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._functorch._aot_autograd import descriptors as d

from jointgraph import GradStatus, Input, InputKind, JointGraphIndex, Output, OutputKind
from tests.capture import joint, symbolic
from tests.graphs import entries, placeholder
from tests.models import MLP, Sample
from tests.numerics import run

# What a record says.


def test_an_input_says_who_it_is(mlp: Sample) -> None:
    """A parameter has its descriptor, kind, fully qualified name, placeholder and position."""
    param = mlp.index().params["second.weight"]
    assert param.desc == d.ParamAOTInput("second.weight")
    assert (param.kind, param.name, param.position) == (InputKind.PARAM, "second.weight", 2)
    assert param.node is placeholder(mlp.graph, "primals_3")


def test_an_output_says_who_it_is(mlp: Sample) -> None:
    """A gradient has its descriptor, kind, name, node and position in the output list."""
    index = mlp.index()
    grad = index.outputs[d.GradAOTOutput(d.ParamAOTInput("second.weight"))]
    assert grad.desc == d.GradAOTOutput(d.ParamAOTInput("second.weight"))
    assert (grad.kind, grad.name, grad.position) == (OutputKind.GRAD, grad.desc.expr(), 3)
    assert grad.node is grad.value is entries(mlp.graph)[3]


def test_a_value_without_a_name_of_its_own_has_its_expression(batch_norm: Sample) -> None:
    """Names of arguments, tangents and results are what their descriptors' ``expr()`` says; a buffer has its own."""
    index = batch_norm.index()
    names = [index.plain_inputs[0].name, index.tangents[d.PlainAOTOutput(0)].name, index.plain_outputs[0].name]
    assert names == ["args[0]", "__output_tangent(output[0])", "output[0]"]
    assert index.buffers["norm.running_var"].name == "norm.running_var"


def test_every_descriptor_class_has_its_kind(batch_norm: Sample) -> None:
    """Kinds of inputs and outputs are told from their descriptors."""
    index = batch_norm.index()
    kinds = InputKind.PARAM, InputKind.BUFFER, InputKind.PLAIN, InputKind.TANGENT
    assert tuple(dict.fromkeys(record.kind for record in index.inputs.values())) == kinds
    output_kinds = OutputKind.INPUT_MUTATION, OutputKind.PLAIN, OutputKind.GRAD
    assert tuple(dict.fromkeys(record.kind for record in index.outputs.values())) == output_kinds


def test_a_plain_value_has_one_leaf_with_the_empty_path(mlp: Sample) -> None:
    """``nodes`` and ``leaves`` of a plain value hold its one slot."""
    param = mlp.index().params["first.weight"]
    assert param.nodes == (param.node,)
    assert list(param.leaves) == [""]
    leaf = param.leaves[""]
    assert (leaf.path, leaf.desc, leaf.position) == ("", param.desc, 0)
    assert leaf.node is leaf.value is param.node
    assert leaf.val is param.val


def test_an_output_without_a_node_has_a_leaf_and_no_nodes(many_outputs: Sample) -> None:
    """Of a result that is a number, ``nodes`` is empty, and its leaf has the number."""
    output = many_outputs.index().plain_outputs[4]
    assert output.nodes == ()
    assert [(leaf.value, leaf.node, leaf.val) for leaf in output.leaves.values()] == [(7, None, None)]


def test_a_node_in_two_slots_has_two_positions(many_outputs: Sample) -> None:
    """The outputs of a tensor that is returned twice have one node, and a position each."""
    first, _, third, *_ = many_outputs.index().plain_outputs.values()
    assert first.node is third.node
    assert (first.position, third.position) == (0, 2)


def test_val_is_the_fake_tensor_of_the_node(batch_norm: Sample) -> None:
    """``val`` of inputs and outputs is their node's ``meta["val"]``."""
    index = batch_norm.index()
    weight, result = index.params["conv.weight"], index.plain_outputs[0]
    assert weight.val is placeholder(batch_norm.graph, "primals_1").meta["val"]
    assert tuple(weight.val.shape) == (4, 3, 3, 3)
    assert result.val is entries(batch_norm.graph)[3].meta["val"]
    assert tuple(result.val.shape) == (2, 4)


def test_nbytes_counts_elements_times_their_size(batch_norm: Sample) -> None:
    """``nbytes`` is the size of the tensor: four bytes to a float, eight to a long integer."""
    index = batch_norm.index()
    assert index.params["conv.weight"].nbytes == 4 * 3 * 3 * 3 * 4
    assert index.buffers["norm.num_batches_tracked"].nbytes == 8
    assert index.plain_outputs[0].nbytes == 2 * 4 * 4


def test_nbytes_is_none_where_there_is_no_tensor(arguments: Sample, many_outputs: Sample) -> None:
    """An integer argument, and results that are ``None`` or a number, have no bytes."""
    assert arguments.index().plain_inputs[1].nbytes is None
    assert [many_outputs.index().plain_outputs[idx].nbytes for idx in (3, 4)] == [None, None]


def test_nbytes_is_symbolic_where_sizes_are() -> None:
    """Under dynamic shapes ``nbytes`` of an argument is an expression in its sizes; a parameter's stays a number."""
    (x,) = symbolic(torch.randn(5, 8))
    index = JointGraphIndex(joint(MLP(), x))
    nbytes = index.plain_inputs[0].nbytes
    assert isinstance(nbytes, torch.SymInt)
    assert nbytes.node.expr == 32 * index.plain_inputs[0].val.shape[0].node.expr
    assert index.params["first.bias"].nbytes == 64


def test_is_used_tells_whether_anything_reads_an_input(three_answers: Sample, arguments: Sample) -> None:
    """Parameters that the graph reads are used, though detached or frozen; one that it doesn't, and an int, aren't."""
    params = three_answers.index().params
    assert {name: param.is_used for name, param in params.items()} == {
        "used": True,
        "unused": False,
        "detached": True,
        "frozen": True,
    }
    assert not arguments.index().plain_inputs[1].is_used


def test_an_input_that_is_only_returned_is_used(many_outputs: Sample) -> None:
    """The output list counts as a reader."""
    graph = many_outputs.copy().graph
    record = JointGraphIndex(graph).plain_inputs[0]
    for user in list(record.node.users):
        if user.op != "output":
            user.replace_input_with(record.node, placeholder(graph, "primals_1"))
    assert [user.op for user in record.node.users] == ["output"]
    assert record.is_used


def test_records_show_what_they_are(mlp: Sample, many_outputs: Sample) -> None:
    """The repr of a record has kind, name and node, or the value where there is no node."""
    index = mlp.index()
    assert repr(index.params["first.bias"]) == "<Input param 'first.bias': primals_2>"
    assert repr(index.plain_outputs[0]) == f"<Output plain 'output[0]': {entries(mlp.graph)[0]}>"
    assert repr(many_outputs.index().plain_outputs[4]) == "<Output plain 'output[4]': 7>"


READ_ONLY: list[tuple[Callable[[JointGraphIndex], Input | Output], str]] = [
    (lambda index: index.params["first.bias"], "node"),
    (lambda index: index.params["first.bias"], "grad"),
    (lambda index: index.plain_outputs[0], "value"),
    (lambda index: index.plain_outputs[0], "tangent"),
]


@pytest.mark.parametrize(("record", "name"), READ_ONLY)
def test_records_are_read_only(mlp: Sample, record: Callable[[JointGraphIndex], Any], name: str) -> None:
    """A record's properties can't be assigned to: the graph is changed by FX alone."""
    with pytest.raises(AttributeError):
        setattr(record(mlp.index()), name, None)


def test_records_are_kept_apart_by_identity(mlp: Sample) -> None:
    """Records can be keys: two records are equal only if they are one."""
    one, other = mlp.index(), mlp.index()
    assert one.params["first.bias"] == one.params["first.bias"]
    assert one.params["first.bias"] != other.params["first.bias"]
    assert len({*one.params.values(), *one.params.values(), *other.params.values()}) == 8


# Links.


def test_an_input_and_its_gradient_link_both_ways(any_sample: Sample) -> None:
    """``grad`` of an input is the output under its ``GradAOTOutput``, whose ``grad_of`` is that input."""
    index = any_sample.index()
    computed = {
        slot.grad_of: value
        for slot, value in zip(any_sample.graph.output_node().meta["desc"], entries(any_sample.graph))
        if isinstance(slot, d.GradAOTOutput) and value is not None
    }
    assert {desc: record.grad.node for desc, record in index.inputs.items() if record.grad is not None} == computed
    for desc in computed:
        grad = index[desc].grad
        assert grad is not None
        assert grad.grad_of is index[desc]


def test_an_output_and_its_tangent_link_both_ways(many_outputs: Sample) -> None:
    """``tangent`` of an output is the input under its ``TangentAOTInput``, whose ``tangent_of`` is that output."""
    index = many_outputs.index()
    for idx, name in enumerate(["tangents_1", "tangents_2", "tangents_3"]):
        tangent = index.plain_outputs[idx].tangent
        assert tangent is not None
        assert tangent.node.name == name
        assert tangent.tangent_of is index.plain_outputs[idx]


def test_an_input_and_its_new_value_link_both_ways(batch_norm: Sample) -> None:
    """``mutation`` of a mutated buffer is the output with its new value, whose ``mutated_input`` is that buffer."""
    index = batch_norm.index()
    for position, buffer in enumerate(index.buffers.values()):
        assert buffer.mutation is not None
        assert buffer.mutation.node is entries(batch_norm.graph)[position]
        assert buffer.mutation.mutated_input is buffer


def test_links_that_are_not_there_are_none(many_outputs: Sample) -> None:
    """A parameter that isn't mutated, a result that has no gradient, and so on, link to nothing."""
    index = many_outputs.index()
    param, argument, detached = index.params["scale"], index.plain_inputs[0], index.plain_outputs[6]
    tangent, gradient = index.tangents[d.PlainAOTOutput(0)], index.grads[d.ParamAOTInput("scale")]
    assert [param.mutation, param.tangent_of, argument.grad, tangent.grad, tangent.mutation] == [None] * 5
    assert [detached.tangent, detached.grad_of, detached.mutated_input] == [None] * 3
    assert [gradient.tangent, gradient.mutated_input] == [None] * 2


def test_pairs_unpack_and_have_names(mlp: Sample) -> None:
    """An `InputGrad` unpacks as input and grad, an `OutputTangent` as output and tangent."""
    index = mlp.index()
    pair = index.input_grads[d.ParamAOTInput("first.bias")]
    param, grad = pair
    assert param is pair.input is index.params["first.bias"]
    assert grad is pair.grad is param.grad is not None
    other = index.output_tangents[d.PlainAOTOutput(0)]
    output, tangent = other
    assert output is other.output is index.plain_outputs[0]
    assert tangent is other.tangent is output.tangent is not None


def test_plain_pairs_have_one_pair_of_leaves(mlp: Sample) -> None:
    """``leaf_pairs`` of a plain pair is its two nodes, and nothing where there is no partner."""
    index = mlp.index()
    param = index.params["first.bias"]
    ((leaf, grad_leaf),) = index.input_grads[param.desc].leaf_pairs()
    assert param.grad is not None
    assert (leaf.node, grad_leaf.node) == (param.node, param.grad.node)
    ((out_leaf, tangent_leaf),) = index.output_tangents[d.PlainAOTOutput(0)].leaf_pairs()
    assert (out_leaf.node, tangent_leaf.node) == (index.plain_outputs[0].node, placeholder(mlp.graph, "tangents_1"))
    assert index.input_grads[d.PlainAOTInput(0)].leaf_pairs() == ()


# Three answers.


def test_a_parameter_has_one_of_three_answers(three_answers: Sample) -> None:
    """A gradient is there; or was asked for in vain by an unused or detached parameter; or a frozen one never asked."""
    params = three_answers.index().params
    assert {name: param.grad_status for name, param in params.items()} == {
        "used": GradStatus.PRESENT,
        "unused": GradStatus.MISSING,
        "detached": GradStatus.MISSING,
        "frozen": GradStatus.NOT_REQUESTED,
    }


def test_grad_is_there_only_where_it_is_present(three_answers: Sample) -> None:
    """``grad`` is ``None`` for a gradient that is missing, as for one that was not asked for."""
    params = three_answers.index().params
    assert {name for name, param in params.items() if param.grad is not None} == {"used"}


def test_arguments_have_the_same_three_answers(grad_inputs: Sample) -> None:
    """Arguments that want a gradient and have one, don't want one, and want one in vain are told apart."""
    plain = grad_inputs.index().plain_inputs
    assert [plain[idx].grad_status for idx in range(3)] == [
        GradStatus.PRESENT,
        GradStatus.NOT_REQUESTED,
        GradStatus.MISSING,
    ]


def test_integers_buffers_and_tangents_ask_for_no_gradient(arguments: Sample, batch_norm: Sample) -> None:
    """What can't have a gradient has the status ``NOT_REQUESTED``."""
    records = [arguments.index().plain_inputs[1], *batch_norm.index().buffers.values()]
    records += batch_norm.index().tangents.values()
    assert {record.grad_status for record in records} == {GradStatus.NOT_REQUESTED}


def test_an_inference_graph_asks_for_no_gradient(inference: Sample) -> None:
    """No parameter of an inference graph asked for a gradient."""
    statuses = [param.grad_status for param in inference.index().params.values()]
    assert statuses == [GradStatus.NOT_REQUESTED] * 4


def test_a_missing_gradient_leads_nowhere(three_answers: Sample) -> None:
    """A missing gradient's slot is an output whose value and ``grad_of`` are ``None``; ``grads`` has none."""
    index = three_answers.index()
    desc = d.ParamAOTInput("unused")
    slot = index.outputs[d.GradAOTOutput(desc)]
    assert (slot.value, slot.node, slot.grad_of) == (None, None, None)
    assert desc not in index.grads
    assert list(index.grads) == [d.ParamAOTInput("used")]


def test_a_gradient_taken_out_is_missing(mlp: Sample) -> None:
    """Where a pass puts ``None`` in a gradient's slot, its status turns from present to missing."""
    graph = mlp.copy().graph
    param = JointGraphIndex(graph).params["first.weight"]
    assert param.grad_status is GradStatus.PRESENT
    values: list[fx.Node | None] = entries(graph)
    assert param.grad is not None
    values[param.grad.position] = None
    graph.output_node().args = (values,)
    answer: tuple[object, GradStatus] = (param.grad, param.grad_status)
    assert answer == (None, GradStatus.MISSING)


# Aliases.


def test_tied_weights_are_aliases(tied: Sample) -> None:
    """Two parameters that are one tensor are aliases of each other, and of nothing else."""
    index = tied.index()
    embed, head = index.params["embed.weight"], index.params["head.weight"]
    assert (embed.aliases, head.aliases) == ((head,), (embed,))
    assert index.plain_inputs[0].aliases == ()


def test_equal_shapes_are_no_aliases(llama: Sample) -> None:
    """Parameters of the same shape that are tensors of their own have no aliases."""
    params = llama.index().params
    assert params["layers.0.wq.weight"].val.shape == params["layers.1.wq.weight"].val.shape
    assert [name for name, param in params.items() if param.aliases] == []


def test_tangents_are_no_aliases(many_outputs: Sample) -> None:
    """The tangents of one tensor that is returned twice may share a fake tensor, and are no aliases."""
    tangents = many_outputs.index().tangents
    assert [tangent.aliases for tangent in tangents.values()] == [(), (), ()]


def test_gradients_of_tied_weights_are_partial(tied: Sample) -> None:
    """Eager autograd's gradient of a tied weight is the sum of its aliases' gradients; neither one is it alone."""
    result = run(tied)
    index = tied.index()
    embed = index.params["embed.weight"]
    grads = [result.grads[record.desc] for record in (embed, *embed.aliases)]
    assert len(grads) == 2
    expected = result.eager_grads[embed.desc]
    assert expected is not None
    torch.testing.assert_close(torch.stack(grads).sum(0), expected, rtol=1e-5, atol=1e-6)
    for partial in grads:
        assert not torch.allclose(partial, expected, rtol=1e-2, atol=1e-2)
