"""What nodes depend on, what they reach, and the nodes derived from some inputs or feeding some outputs alone."""

from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch._functorch._aot_autograd import descriptors as d

from jointgraph import Input, JointGraphError, JointGraphIndex, StaleIndexError
from tests.cases import CATALOGUE
from tests.models import Sample
from tests.test_phases import captured_nets


def test_a_placeholder_is_its_own_source(mlp: Sample) -> None:
    """And the node that an output returns reaches that output."""
    index = mlp.index()
    for record in index.inputs.values():
        assert index.flow.sources(record.node) == (record,)
    for output in index.outputs.values():
        assert output.node is not None
        assert output in index.flow.sinks(output.node)


def test_sources_are_in_slot_order(mlp: Sample) -> None:
    """A gradient of the first layer depends on nearly all there is, tangents included."""
    index = mlp.index()
    grad = index.params["first.weight"].grad
    assert grad is not None
    assert grad.node is not None
    sources = index.flow.sources(grad.node)
    assert [one.name for one in sources if one.kind.value == "param"] == ["first.weight", "first.bias", "second.weight"]
    assert list(sources) == sorted(sources, key=lambda one: one.position)
    assert sources[-1] in index.tangents.values()


def test_sinks_are_in_slot_order(mlp: Sample) -> None:
    """The result of the first layer is needed for the output and for all gradients but that of the last bias."""
    index = mlp.index()
    (relu,) = index.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
    sinks = index.flow.sinks(relu)
    assert [one.name for one in sinks] == [
        "output[0]",
        "__grad(self.get_parameter('first.weight'))",
        "__grad(self.get_parameter('first.bias'))",
        "__grad(self.get_parameter('second.weight'))",
    ]


def test_a_dead_node_reaches_nothing(three_answers: Sample) -> None:
    """Nor does an unused input; and a detached one is in forward outputs only."""
    index = three_answers.index()
    assert index.flow.sinks(index.params["unused"].node) == ()
    assert index.flow.sinks(index.params["detached"].node) == (index.plain_outputs[0],)


def test_leaves_of_a_subclass_are_one_source() -> None:
    """What depends on any leaf depends on the value."""
    (case, *_) = CATALOGUE["two tensor"]
    index = JointGraphIndex(case.graphs[0])
    split = [record for record in index.inputs.values() if len(record.nodes) > 1]
    assert split
    for record in split:
        assert {index.flow.sources(node) for node in record.nodes} == {(record,)}


@captured_nets
def test_derived_from_parameters(net: Callable[[], Sample]) -> None:
    """The parameter-derived nodes: the inputs of each are parameters, parameter-derived, or constants beside such."""
    index = net().index()
    derived = {param.node for param in index.params.values()}
    constant: set[fx.Node] = set()
    for node in index.graph.nodes:
        inputs = {*node.all_input_nodes}
        if node.op != "placeholder" and inputs <= constant:
            constant.add(node)
        elif node.op not in {"placeholder", "output"} and inputs <= derived | constant:
            derived.add(node)
    expected = [node for node in index.graph.nodes if node in derived and node.op != "placeholder"]
    assert list(index.flow.derived_from(index.params.values())) == expected
    assert expected or "conv.weight" in index.params


@captured_nets
def test_only_feeding_gradients(net: Callable[[], Sample]) -> None:
    """The terminal-derived nodes: each has users, and all are terminal-derived, or the output node for a gradient."""
    index = net().index()
    grads = [param.grad for param in index.params.values() if param.grad is not None]
    others = {node for output in index.outputs.values() if output not in grads for node in output.nodes}
    terminal: set[fx.Node] = set()
    for node in reversed(index.graph.nodes):
        ends = {user for user in node.users if user.op == "output" and node not in others}
        if node.op != "output" and node.users and {*node.users} - ends <= terminal:
            terminal.add(node)
    assert list(index.flow.only_feeding(grads)) == [node for node in index.graph.nodes if node in terminal]
    assert {grad.node for grad in grads} < terminal


def test_one_record_will_do(mlp: Sample) -> None:
    """A weight's transposes hang on it alone; the last step to a gradient feeds it alone."""
    index = mlp.index()
    weight = index.params["second.weight"]
    assert weight.grad is not None
    assert [node.target for node in index.flow.derived_from(weight)] == [torch.ops.aten.t.default] * 2
    assert index.flow.derived_from([weight]) == index.flow.derived_from(weight)
    fed = index.flow.only_feeding(weight.grad)
    assert fed[-1] is weight.grad.node
    assert index.flow.only_feeding([weight.grad]) == fed


def test_no_records_no_nodes(mlp: Sample) -> None:
    """Constants are derived from nothing, dead nodes feed nothing: neither is in any answer."""
    index = JointGraphIndex(mlp.copy())
    with index.graph.inserting_before(index.graph.output_node()):
        constant = index.graph.call_function(torch.ops.aten.ones.default, ([2],))
    assert index.flow.derived_from([]) == index.flow.only_feeding([]) == ()
    assert constant not in index.flow.derived_from(index.inputs.values())
    assert constant not in index.flow.only_feeding(index.outputs.values())


def test_a_write_is_a_use_of_another_kind(mlp: Sample) -> None:
    """What a buffer is overwritten with feeds more than a gradient, though no output returns it."""
    index = JointGraphIndex(mlp.copy())
    grad, x = index.params["first.bias"].grad, index.plain_inputs[0].node
    assert grad is not None
    assert grad.node is not None
    before = index.flow.only_feeding(grad)
    with index.graph.inserting_before(index.graph.output_node()):
        index.graph.call_function(torch.ops.aten.copy_.default, (x, grad.node))
    assert before[-1] is grad.node
    assert index.flow.only_feeding(grad) == ()
    assert grad in index.flow.sinks(grad.node)


def test_records_of_another_index_are_refused(mlp: Sample) -> None:
    """Two indexes of one graph have records of their own."""
    index, other = mlp.index(), mlp.index()
    with pytest.raises(JointGraphError, match=r"first\.weight.* is of another index"):
        index.flow.derived_from(other.params["first.weight"])


def test_records_of_the_wrong_side_are_refused(mlp: Sample) -> None:
    """Nodes derive from inputs and feed outputs."""
    index = mlp.index()
    with pytest.raises(JointGraphError, match=r"derived_from\(\) takes inputs, not <Output"):
        index.flow.derived_from([*index.outputs.values()])  # type: ignore[list-item]  # on purpose
    with pytest.raises(JointGraphError, match=r"only_feeding\(\) takes outputs, not <Input"):
        index.flow.only_feeding(index.params["first.weight"])  # type: ignore[arg-type]  # on purpose


def test_a_record_that_is_gone_is_refused(mlp: Sample) -> None:
    """Its descriptor was given up for another."""
    index = JointGraphIndex(mlp.copy())
    x = index.plain_inputs[0]
    x.node.meta["desc"] = d.PlainAOTInput(7)
    with pytest.raises(StaleIndexError, match="not in the graph any more"):
        index.flow.derived_from(x)


class NoTangents(JointGraphIndex):
    """Leaves out all but parameters."""

    def keeps_input(self, desc: d.AOTInput) -> bool:
        return desc.is_param()


def test_what_an_index_leaves_out_is_no_source(mlp: Sample) -> None:
    """But it counts: a node that depends on it is not derived from the rest, and a tangent makes it backward."""
    index, full = NoTangents(mlp.joint), mlp.index()
    for node in mlp.graph.nodes:
        if node.op != "output":
            kept: list[Input] = [one for one in full.flow.sources(node) if one.desc.is_param()]
            assert [one.desc for one in index.flow.sources(node)] == [one.desc for one in kept]
            assert index.flow.phase(node) is full.flow.phase(node)
    derived = index.flow.derived_from(index.params.values())
    assert derived == full.flow.derived_from(full.params.values())
