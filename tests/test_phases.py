"""Forward, backward and free nodes, from dataflow alone."""

from collections.abc import Callable

import pytest
import torch
from torch import fx, nn
from torch._functorch._aot_autograd import descriptors as d

from jointgraph import GraphKind, JointGraphError, JointGraphIndex, Phase
from tests.capture import compiled, joint, partition
from tests.graphs import copy_of, entries, interior, placeholder, set_outputs
from tests.models import Sample, sample


class Decoder(nn.Module):
    """A transformer with an encoder and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z: torch.Tensor = self.net(x, y)
        return z


TRANSFORMERS: dict[str, Callable[[], Sample]] = {
    "one layer": lambda: sample("transformer"),
    "llama": lambda: sample("llama"),
    "encoder and decoder": lambda: Sample(Decoder(), (torch.randn(2, 5, 8), torch.randn(2, 4, 8))),
    "batch norm": lambda: sample("batch_norm"),
}
captured_nets = pytest.mark.parametrize("net", TRANSFORMERS.values(), ids=TRANSFORMERS)


def phases(index: JointGraphIndex) -> dict[str, Phase]:
    """The phase of every node by its name."""
    with index.reading():
        return {node.name: index.flow.phase(node) for node in index.graph.nodes}


def names(nodes: tuple[fx.Node, ...]) -> list[str]:
    """The names of nodes."""
    return [node.name for node in nodes]


@captured_nets
def test_forward_is_what_torch_runs_for_forward_outputs(net: Callable[[], Sample]) -> None:
    """In the forward half of ``default_partition``, what the forward outputs need is ``FORWARD`` in the joint graph."""
    net_sample = net()
    forward = JointGraphIndex(partition(net_sample.joint).forward)
    outputs = [one for desc, one in forward.outputs.items() if one not in forward.saved.values()]
    needed = {node.name for one in outputs for end in one.nodes for node in ancestors(end)}
    assert needed == {*names(net_sample.index().flow.forward_nodes)}


@captured_nets
def test_backward_is_what_torch_runs_on_tangents(net: Callable[[], Sample]) -> None:
    """In the backward half of ``default_partition``, what depends on a tangent is ``BACKWARD`` in the joint graph."""
    net_sample = net()
    backward = JointGraphIndex(partition(net_sample.joint).backward)
    tangents = {node for one in backward.tangents.values() for node in one.nodes}
    late = {node.name for node in backward.graph.nodes if node.op != "output" and tangents & ancestors(node)}
    assert late == {*names(net_sample.index().flow.backward_nodes)}


def ancestors(node: fx.Node) -> set[fx.Node]:
    """A node and all that it depends on."""
    found, to_do = {node}, [node]
    while to_do:
        new = [one for one in to_do.pop().all_input_nodes if one not in found]
        found.update(new)
        to_do += new
    return found


def test_the_lists_are_in_graph_order_and_leave_out_the_output_node(transformer: Sample) -> None:
    """Each other node is in one of them."""
    flow = transformer.index().flow
    lists = [flow.forward_nodes, flow.backward_nodes, flow.free_nodes]
    order = [node for node in transformer.graph.nodes if node.op != "output"]
    assert [[node for node in order if node in one] for one in lists] == [[*one] for one in lists]
    assert sorted(node for one in lists for node in one) == order


def test_names_tags_and_order_do_not_matter(transformer: Sample) -> None:
    """Renamed, without metadata but for descriptors, and in another order, the nodes are what they were."""
    module = transformer.copy()
    nodes = list(module.graph.nodes)
    before = list(phases(JointGraphIndex(module)).values())
    for number, node in enumerate(nodes):
        node.name = f"x{number}"
        node.meta = {key: value for key, value in node.meta.items() if key == "desc"}
    *inputs, tangent = module.graph.find_nodes(op="placeholder")
    inputs[0].prepend(tangent)
    for node in interior(module.graph):
        if JointGraphIndex(module).flow.phase(node) is Phase.FREE and node.args:
            node.all_input_nodes[-1].append(node)
    module.graph.lint()
    assert list(module.graph.nodes) != nodes
    after = phases(JointGraphIndex(module))
    assert [after[node.name] for node in nodes] == before


def test_what_only_backward_needs_is_free(mlp: Sample) -> None:
    """The transpose of a weight for backward's product depends on no tangent; nor does what relu keeps."""
    index = mlp.index()
    free = {node.target for node in index.flow.free_nodes}
    assert free == {torch.ops.aten.t.default, torch.ops.aten.detach.default}


def test_dead_nodes_are_free_unless_they_depend_on_a_tangent(mlp: Sample) -> None:
    """An unused node is on no side, but may not be able to run on one of them."""
    index = JointGraphIndex(mlp.copy())
    weight, tangent = index.params["first.weight"].node, index.tangents[d.PlainAOTOutput(0)].node
    with index.graph.inserting_after(tangent):
        dead = index.graph.call_function(torch.ops.aten.neg.default, (weight,))
        late = index.graph.call_function(torch.ops.aten.neg.default, (tangent,))
    assert index.flow.phase(dead) is Phase.FREE
    assert index.flow.phase(late) is Phase.BACKWARD


def test_an_unused_input_is_free(three_answers: Sample) -> None:
    """A parameter that nothing reads is on no side; one that forward reads is forward."""
    index = three_answers.index()
    found = {name: index.flow.phase(param.node) for name, param in index.params.items()}
    assert found == {
        "used": Phase.FORWARD,
        "unused": Phase.FREE,
        "detached": Phase.FORWARD,
        "frozen": Phase.FORWARD,
    }


def test_a_returned_argument_is_forward(many_outputs: Sample) -> None:
    """An output may be a placeholder."""
    index = many_outputs.index()
    node = index.plain_outputs[5].node
    assert node is index.plain_inputs[0].node
    assert index.flow.phase(node) is Phase.FORWARD


def test_a_write_to_an_input_is_forward_with_all_that_it_needs() -> None:
    """Where torch.compile keeps mutations in the graph, no output needs the new running statistics, but ``copy_``."""
    norm = nn.BatchNorm1d(4)
    graph = compiled(lambda x: norm(x).sin(), torch.randn(3, 4)).joint
    assert graph is not None
    index = JointGraphIndex(graph)
    writes = index.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    assert len(writes) == 3
    for write in writes:
        assert [index.flow.phase(node) for node in ancestors(write)] == [Phase.FORWARD] * len(ancestors(write))
        assert index.flow.sinks(write) == ()


def test_a_write_of_what_backward_computes_is_backward(mlp: Sample) -> None:
    """It depends on a tangent; what it needs beside that stays as it was."""
    module = mlp.copy()
    index = JointGraphIndex(module)
    before = phases(index)
    grad, weight = index.params["first.weight"].grad, index.params["first.weight"].node
    assert grad is not None
    with index.graph.inserting_before(index.graph.output_node()):
        write = index.graph.call_function(torch.ops.aten.copy_.default, (weight, grad.node))
    after = phases(index)
    assert after.pop(write.name) is Phase.BACKWARD
    assert after == before


def test_a_changed_target_can_make_a_node_an_effect(mlp: Sample) -> None:
    """Nothing reads the new node; as a write to an input it counts, as an addition it doesn't."""
    index = JointGraphIndex(mlp.copy())
    x = index.plain_inputs[0].node
    with index.graph.inserting_after(x):
        node = index.graph.call_function(torch.ops.aten.add.Tensor, (x, x))
    found = [index.flow.phase(node)]
    node.target = torch.ops.aten.add_.Tensor
    found.append(index.flow.phase(node))
    assert found == [Phase.FREE, Phase.FORWARD]


def test_a_write_in_a_backward_graph_is_not_forward(mlp: Sample) -> None:
    """Without a tangent it is free, and what it reads of forward crosses."""
    index = JointGraphIndex(partition(mlp.joint).backward)
    activation, other, *_ = (node for one in index.saved.values() for node in one.nodes)
    with index.graph.inserting_before(index.graph.output_node()):
        write = index.graph.call_function(torch.ops.aten.copy_.default, (activation, other))
    assert index.flow.phase(write) is Phase.FREE
    assert index.flow.forward_nodes == ()
    assert [write in one.readers for one in index.flow.boundary if one.node in {activation, other}] == [True, True]


def test_the_effect_of_a_higher_order_operator_depends_on_its_arguments(mlp: Sample) -> None:
    """Of two calls of one, each is judged for itself."""
    index = JointGraphIndex(mlp.copy())
    x = index.plain_inputs[0].node
    wrap = torch.ops.higher_order.auto_functionalized
    with index.graph.inserting_before(index.graph.output_node()):
        calls = [
            index.graph.call_function(wrap, (op,), {"x": x})
            for op in (torch.ops.aten.sin.default, torch.ops.aten._assert_scalar.default, torch.ops.aten.sin.default)
        ]
    assert [index.flow.phase(call) for call in calls] == [Phase.FREE, Phase.FORWARD, Phase.FREE]


def test_in_an_inference_graph_all_is_forward(inference: Sample) -> None:
    """The output node as well."""
    index = inference.index()
    assert {*phases(index).values()} == {Phase.FORWARD}
    assert index.flow.backward_nodes == index.flow.free_nodes == ()


def test_in_a_forward_graph_all_is_forward(transformer: Sample) -> None:
    """What it saves for backward are outputs."""
    index = JointGraphIndex(partition(transformer.joint).forward)
    assert index.kind is GraphKind.FORWARD
    assert {*phases(index).values()} == {Phase.FORWARD}


def test_in_a_backward_graph_what_needs_no_tangent_is_free(transformer: Sample) -> None:
    """Nothing is forward; activations and what is made of them alone could be had before the tangents are there."""
    index = JointGraphIndex(partition(transformer.joint).backward)
    assert index.kind is GraphKind.BACKWARD
    assert index.flow.forward_nodes == ()
    carried = {node for one in index.saved.values() for node in one.nodes}
    assert carried <= {*index.flow.free_nodes}
    assert all(ancestors(node) <= {*index.flow.free_nodes} for node in index.flow.free_nodes)
    assert {one.node for one in index.tangents.values()} <= {*index.flow.backward_nodes}


def test_an_output_that_depends_on_a_tangent_is_backward(mlp: Sample) -> None:
    """Whatever its descriptor says: no forward graph could return it."""
    index = JointGraphIndex(mlp.copy())
    tangent = index.tangents[d.PlainAOTOutput(0)].node
    descs = index.graph.output_node().meta["desc"]
    set_outputs(index.graph, [*entries(index.graph), tangent], [*descs, d.PlainAOTOutput(1)])
    assert index.flow.phase(tangent) is Phase.BACKWARD
    assert index.flow.sinks(tangent)[-1] is index.plain_outputs[1]


def test_a_node_of_another_graph_is_refused(mlp: Sample) -> None:
    """A copy has nodes of its own, of the same names."""
    index, other = mlp.index(), copy_of(mlp.joint.graph_module).graph
    with pytest.raises(JointGraphError, match="primals_1 is a node of another graph"):
        index.flow.phase(placeholder(other, "primals_1"))


def test_an_erased_node_is_refused(mlp: Sample) -> None:
    """It is in no graph any more."""
    index = JointGraphIndex(mlp.copy())
    with index.graph.inserting_before(index.graph.output_node()):
        node = index.graph.call_function(torch.ops.aten.neg.default, (index.plain_inputs[0].node,))
    index.graph.erase_node(node)
    with pytest.raises(JointGraphError, match="neg_default was erased"):
        index.flow.phase(node)


def test_nodes_out_of_order_are_refused() -> None:
    """Half way through a move, there is no dataflow to speak of; a later question finds it."""
    index = JointGraphIndex(copy_of(joint(nn.Linear(2, 2), torch.randn(2, 2)).graph_module))
    first, second, *_ = [node for node in index.graph.nodes if node.op == "call_function"]
    second.append(first)
    with pytest.raises(JointGraphError, match=rf"{second} reads {first}, which is not before it"):
        _ = index.flow.forward_nodes
    first.append(second)
    assert index.flow.phase(second) is Phase.FORWARD
