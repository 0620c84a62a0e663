"""The module that a node came from and its forward twin, as far as the capture recorded them."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import fx
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

from jointgraph import JointGraphError, JointGraphIndex, Phase
from tests.capture import compiled, partition, torchs_own_warnings
from tests.graphs import copy_of
from tests.models import Sample

aten = torch.ops.aten


def exported(sample: Sample) -> JointGraphIndex:
    """The joint graph of what torch.export makes of a model: with modules recorded, and parameter names."""
    with ExitStack() as stack, torchs_own_warnings():
        module = torch.export.export(sample.module, sample.args).module()
        return JointGraphIndex(aot_export_joint_with_descriptors(stack, module, sample.args))


def through_compile(sample: Sample) -> JointGraphIndex:
    """The joint graph that torch.compile makes of a model."""
    graph = compiled(sample.module, *sample.args).joint
    assert graph is not None
    return JointGraphIndex(graph)


def only(index: JointGraphIndex, target: Callable[..., Any], number: int = 0) -> fx.Node:
    """One of the nodes of an operator."""
    node: fx.Node = index.graph.find_nodes(op="call_function", target=target)[number]
    return node


@pytest.mark.parametrize("capture", [exported, through_compile])
def test_forward_and_backward_nodes_know_their_module(
    capture: Callable[[Sample], JointGraphIndex], llama: Sample
) -> None:
    """By its path in the captured module, whoever captured it."""
    index = capture(llama)
    paths = {index.flow.module_of(node) for node in index.graph.nodes}
    layers = {f"layers.{layer}.{part}" for layer in (0, 1) for part in ("wq", "wo", "w2", "ffn_norm")}
    assert layers | {"embed", "layers.0", "layers.1", "norm", "head"} <= paths
    backward = {index.flow.module_of(node) for node in index.flow.backward_nodes}
    assert layers | {"embed", "norm", "head"} <= backward


def test_the_captured_module_itself_has_an_empty_path(transformer: Sample) -> None:
    """What it does outside its submodules is its own."""
    index = through_compile(transformer)
    assert index.flow.module_of(only(index, aten.relu.default)) == ""
    assert index.flow.module_of(only(index, aten.native_layer_norm.default)) == "norm1"


def test_a_module_found_elsewhere_is_told_by_where(mlp: Sample) -> None:
    """A function may use several modules: each path starts with that of its root."""
    module = mlp.module
    graph = compiled(lambda x: module(x).sin(), *mlp.args).joint
    assert graph is not None
    index = JointGraphIndex(graph)
    path = index.flow.module_of(only(index, aten.addmm.default))
    assert path is not None
    assert path.endswith(".first")
    assert path != "first"


def test_a_raw_module_has_no_modules_recorded(mlp: Sample) -> None:
    """But its nodes are numbered, so that they have twins."""
    index = mlp.index()
    assert {index.flow.module_of(node) for node in index.graph.nodes} == {None}
    assert index.flow.twin_of(only(index, aten.threshold_backward.default)) is only(index, aten.relu.default)


def test_twins_go_both_ways(transformer: Sample) -> None:
    """A call of forward and the first node of backward that was traced for it."""
    index = transformer.index()
    for number in (0, 1):
        one = only(index, aten.native_layer_norm.default, number)
        other = only(index, aten.native_layer_norm_backward.default, 1 - number)
        assert index.flow.twin_of(one) is other
        assert index.flow.twin_of(other) is one
        assert [index.flow.phase(node) for node in (one, other)] == [Phase.FORWARD, Phase.BACKWARD]


def test_the_modules_of_backward_are_those_of_their_twins(transformer: Sample) -> None:
    """Where torch copied no module to a backward node, the twin tells it."""
    index = JointGraphIndex(copy_of(compiled(transformer.module, *transformer.args).joint))  # type: ignore[arg-type]
    node = only(index, aten.native_layer_norm_backward.default)
    path = index.flow.module_of(node)
    del node.meta["fwd_nn_module_stack"]
    assert path == index.flow.module_of(node) == "norm2"


def test_a_sum_of_gradients_has_no_twin(transformer: Sample) -> None:
    """Autograd adds them up on behalf of no call of forward; the number that the sum was given means nothing."""
    index = through_compile(transformer)
    sums = [node for node in index.graph.nodes if "is_gradient_acc" in node.meta]
    assert sums
    assert all("seq_nr" in node.meta for node in sums)
    assert {index.flow.twin_of(node) for node in sums} == {None}
    assert {index.flow.module_of(node) for node in sums} == {None}


def test_slots_and_new_nodes_have_no_twin(mlp: Sample) -> None:
    """Nothing was recorded for them."""
    index = JointGraphIndex(mlp.copy())
    x = index.plain_inputs[0].node
    with index.graph.inserting_after(x):
        new = index.graph.call_function(aten.neg.default, (x,))
    assert index.flow.twin_of(new) is index.flow.twin_of(x) is None
    assert index.flow.module_of(new) is index.flow.module_of(x) is None


def test_a_half_has_modules_and_no_twins(transformer: Sample) -> None:
    """The twin of a backward node is in the other graph. Its module was copied to it, and is known of activations."""
    halves = compiled(transformer.module, *transformer.args).halves
    assert halves is not None
    index = JointGraphIndex(halves.backward)
    assert {index.flow.twin_of(node) for node in index.graph.nodes} == {None}
    assert index.flow.module_of(only(index, aten.threshold_backward.default)) == ""
    assert {"linear1", "norm1"} <= {*index.flow.boundary.by_module}


def test_edited_metadata_is_the_answer_at_once(mlp: Sample) -> None:
    """Metadata is read at each call."""
    index = JointGraphIndex(mlp.copy())
    relu, backward = only(index, aten.relu.default), only(index, aten.threshold_backward.default)
    assert index.flow.twin_of(backward) is relu
    relu.meta["seq_nr"] = -1
    assert index.flow.twin_of(relu) is None
    backward.meta["seq_nr"] = -1
    assert index.flow.twin_of(relu) is backward
    relu.meta["nn_module_stack"] = {"": ("a.b", object)}
    assert index.flow.module_of(backward) == "a.b"


def test_each_reading_block_reads_metadata_anew(mlp: Sample) -> None:
    """Inside one, what was read stays."""
    index = JointGraphIndex(mlp.copy())
    relu, backward = only(index, aten.relu.default), only(index, aten.threshold_backward.default)
    with index.reading():
        assert index.flow.twin_of(backward) is relu
    relu.meta["seq_nr"] = -1
    with index.reading():
        assert index.flow.twin_of(backward) is not relu


def test_nodes_of_another_graph_are_refused(mlp: Sample) -> None:
    """A half has nodes of its own."""
    index = mlp.index()
    stranger = only(JointGraphIndex(partition(mlp.joint).forward), aten.relu.default)
    for ask in (index.flow.twin_of, index.flow.module_of, index.flow.sources, index.flow.sinks):
        with pytest.raises(JointGraphError, match="relu is a node of another graph"):
            ask(stranger)
