"""`copy_descriptors`: onto graphs that lost theirs, or refused."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from jointgraph import EditError, FindingCode, JointGraphIndex, MissingDescriptorError, Severity, copy_descriptors
from tests.capture import joint, torchs_own_warnings
from tests.graphs import copy_of, entries, placeholder, snapshot
from tests.models import Sample

aten = torch.ops.aten


def real_inputs(module: fx.GraphModule) -> tuple[list[Any], list[Any]]:
    """Primals and tangents of the shapes that a joint graph takes."""
    primals: list[Any] = []
    tangents: list[Any] = []
    for node in module.graph.find_nodes(op="placeholder"):
        val = node.meta.get("val")
        value = torch.zeros(val.shape, dtype=val.dtype) if isinstance(val, torch.Tensor) else None
        (tangents if "tangents" in node.name else primals).append(value)
    return primals, tangents


def retraced(module: fx.GraphModule) -> fx.GraphModule:
    """The graph traced once more."""
    with torchs_own_warnings():
        return make_fx(module)(*real_inputs(module))


def transformed(module: fx.GraphModule) -> fx.GraphModule:
    """The graph as a transformer that changes nothing makes it."""
    made = fx.Transformer(module).transform()
    assert isinstance(made, fx.GraphModule)
    return made


def pickled(module: fx.GraphModule) -> fx.GraphModule:
    """The graph out of a pickle."""
    with torchs_own_warnings():
        made = pickle.loads(pickle.dumps(module))
    assert isinstance(made, fx.GraphModule)
    return made


def pickled_and_retraced(module: fx.GraphModule) -> fx.GraphModule:
    """Which makes it flat again."""
    with torchs_own_warnings():
        return make_fx(pickled(module))(*real_inputs(module))


@pytest.mark.parametrize("remake", [transformed, retraced, pickled_and_retraced])
def test_a_graph_that_lost_its_descriptors_has_them_again(
    any_sample: Sample, remake: Callable[[fx.GraphModule], fx.GraphModule]
) -> None:
    """The index says of it what it says of the original, and its values are right."""
    source = any_sample.joint.graph_module
    if "tangents_1" not in [node.name for node in source.graph.find_nodes(op="placeholder")]:
        pytest.skip("an inference graph is not called with primals and tangents")
    target = remake(source)
    with pytest.raises(MissingDescriptorError):
        JointGraphIndex(target)
    copy_descriptors(source, target)
    index, original = JointGraphIndex(target), JointGraphIndex(source)
    assert [*index.inputs] == [*original.inputs]
    assert [*index.outputs] == [*original.outputs]
    assert [record.nbytes for record in index.inputs.values()] == [one.nbytes for one in original.inputs.values()]
    assert [str(finding) for finding in index.check() if finding.severity is not Severity.NOTE] == []


def test_the_source_is_left_alone(mlp: Sample) -> None:
    """And shares no list with the target."""
    source = mlp.copy()
    before = snapshot(source.graph)
    target = transformed(source)
    copy_descriptors(source, target)
    assert snapshot(source.graph) == before
    assert target.graph.output_node().meta["desc"] is not source.graph.output_node().meta["desc"]


def refused(source: fx.GraphModule, target: fx.GraphModule, match: str) -> EditError:
    """It is refused with a message, and the target is as it was."""
    before = snapshot(target.graph)
    with pytest.raises(EditError, match=match) as caught:
        copy_descriptors(source, target)
    assert snapshot(target.graph) == before
    return caught.value


def test_nested_inputs_and_outputs_are_refused(mlp: Sample) -> None:
    """Both, with the way out: that of `pickled_and_retraced`."""
    error = refused(mlp.joint.graph_module, pickled(mlp.joint.graph_module), r"takes 2 inputs instead of 6")
    assert [finding.code for finding in error.findings] == [FindingCode.SLOT_COUNT, FindingCode.OUTPUT_LIST]
    assert "make_fx" in str(error)


def test_an_output_less_is_refused(mlp: Sample) -> None:
    """Which of them it is, nothing tells."""
    target = transformed(mlp.joint.graph_module)
    target.graph.output_node().args = (entries(target.graph)[1:],)
    refused(mlp.joint.graph_module, target, "it returns 5 values instead of 6")


def test_placeholders_in_another_order_are_refused(mlp: Sample) -> None:
    """Known by their names, even if their shapes agree, and by what does not work then."""
    target = transformed(mlp.joint.graph_module)
    placeholder(target.graph, "primals_1").prepend(placeholder(target.graph, "primals_2"))
    error = refused(mlp.joint.graph_module, target, "its name is that of input 1, and it is input 0")
    assert {finding.code for finding in error.findings} == {FindingCode.SLOT_MISMATCH}


def test_outputs_in_another_order_are_refused(mlp: Sample) -> None:
    """Known by their shapes."""
    target = transformed(mlp.joint.graph_module)
    first, second, *others = entries(target.graph)
    target.graph.output_node().args = ([second, first, *others],)
    refused(mlp.joint.graph_module, target, r"output\[0\] .* shape \[16, 8\] instead of \[5, 4\]")


def test_gradients_of_one_shape_in_another_order_are_refused() -> None:
    """Known by the inputs that they depend on, though names are gone."""
    source = joint(TwoWeights(), torch.randn(2, 3)).graph_module
    target = transformed(source)
    for number, node in enumerate(target.graph.find_nodes(op="placeholder")):
        node.name = node.target = f"input_{number}"
    values = entries(target.graph)
    values[1], values[2] = values[2], values[1]
    target.graph.output_node().args = (values,)
    refused(source, target, r"it depends on input_0, and GradAOTOutput\(grad_of=ParamAOTInput\(target='w'\)\) does not")


class TwoWeights(nn.Module):
    """The gradient of one does not depend on it, that of the other depends on both."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w * self.v.exp()


def test_none_in_place_of_a_value_is_refused(mlp: Sample) -> None:
    """A gradient that the source computes."""
    target = transformed(mlp.joint.graph_module)
    values = entries(target.graph)
    values[2] = None
    target.graph.output_node().args = (values,)
    refused(mlp.joint.graph_module, target, r"output\[2\] \(None\): it has None instead of view_1")


def test_a_graph_of_another_program_is_refused(mlp: Sample, transformer: Sample) -> None:
    """One whose operators don't work on the source's inputs."""
    target = transformed(mlp.joint.graph_module)
    node = next(node for node in target.graph.nodes if node.target is aten.addmm.default)
    node.args = (node.args[0], node.args[2], node.args[1])
    refused(mlp.joint.graph_module, target, "aten.addmm.default does not work")
    refused(transformer.joint.graph_module, target, "instead of")


def test_a_source_without_descriptors_is_refused(mlp: Sample) -> None:
    """It has none to give."""
    target = copy_of(mlp.joint.graph_module)
    with pytest.raises(MissingDescriptorError):
        copy_descriptors(transformed(mlp.joint.graph_module), target)
