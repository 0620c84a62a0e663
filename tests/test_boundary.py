"""What backward keeps alive: the values that cross from forward to backward, with their bytes."""

import operator
from collections.abc import Callable

import torch
from torch import fx, nn
from torch._functorch._aot_autograd import descriptors as d

from jointgraph import Crossing, CrossingRole, JointGraphIndex, Phase
from tests.capture import compiled, joint, partition, symbolic
from tests.graphs import copy_of, entries, set_outputs
from tests.models import MLP, Llama, Sample
from tests.test_phases import captured_nets


def crossings(index: JointGraphIndex) -> dict[str, Crossing]:
    """What crosses, by node name."""
    return {crossing.node.name: crossing for crossing in index.flow.boundary}


@captured_nets
def test_the_boundary_is_what_torch_saves(net: Callable[[], Sample]) -> None:
    """It is what ``default_partition`` saves, but for free nodes.

    Torch goes by the order of nodes: a free node that was traced in forward (the ``detach`` by which autograd keeps a
    result) it runs there, and saves what that makes. By dataflow, backward can run the node, and reads what it is made
    of. So each free node that torch saves stands for the values of forward that it depends on.
    """
    index = net().index()
    saved = {*JointGraphIndex(partition(net().joint).backward).saved}
    expected: set[str] = set()
    for node in index.graph.nodes:
        if node.name in saved:
            expected |= {node.name} if on_forward_side(index, node) else made_of(index, node)
    assert {*crossings(index)} == expected


def on_forward_side(index: JointGraphIndex, node: fx.Node) -> bool:
    """Whether forward makes a value or takes it in, be it as one of several results."""
    if node.target is operator.getitem:
        return on_forward_side(index, node.all_input_nodes[0])
    return node.op == "placeholder" or index.flow.phase(node) is Phase.FORWARD


def made_of(index: JointGraphIndex, node: fx.Node) -> set[str]:
    """The values of the forward side that a free node is made of."""
    found: set[str] = set()
    for one in node.all_input_nodes:
        found |= {one.name} if on_forward_side(index, one) else made_of(index, one)
    return found


def test_the_free_nodes_that_torch_saves_are_detached_results(transformer: Sample) -> None:
    """The difference to ``default_partition`` on this model, in full."""
    index = transformer.index()
    saved = {*JointGraphIndex(partition(transformer.joint).backward).saved}
    assert saved - {*crossings(index)} == {"detach", "detach_1"}
    assert {*crossings(index)} - saved == {"getitem", "relu"}
    by_name = {node.name: node for node in index.graph.nodes}
    assert [by_name[name].all_input_nodes[0].name for name in ("detach", "detach_1")] == ["getitem", "relu"]


def test_a_crossing_says_who_reads_it(mlp: Sample) -> None:
    """Only nodes that backward runs: forward's own readers are left out."""
    index = mlp.index()
    x, weight = index.plain_inputs[0].node, index.params["second.weight"].node
    found = crossings(index)
    assert [reader.target for reader in found[x.name].readers] == [torch.ops.aten.mm.default]
    transposed = index.flow.chain(index.params["second.weight"]).nodes[0]
    assert transposed.args[0] is weight
    assert [reader.target for reader in found[transposed.name].readers] == [torch.ops.aten.t.default]
    assert weight.name not in found


def test_a_result_of_several_crosses_by_itself(transformer: Sample) -> None:
    """Of layer norm, backward reads the mean and the deviation: these cross, and not the tuple."""
    index = transformer.index()
    (norm, _) = index.graph.find_nodes(op="call_function", target=torch.ops.aten.native_layer_norm.default)
    result, mean, deviation = norm.users
    found = crossings(index)
    assert norm.name not in found
    assert result.name not in found
    assert found[mean.name].nbytes == mean.meta["val"].numel() * 4
    assert [reader.target for reader in found[deviation.name].readers] == [
        torch.ops.aten.native_layer_norm_backward.default
    ]


class Roles(nn.Module):
    """Backward reads an argument, a result and what is neither."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        result = x.sin().exp()
        return result, result * y


def test_roles(mlp: Sample) -> None:
    """What is no input and no output of forward is extra."""
    index = JointGraphIndex(joint(Roles(), torch.randn(2, requires_grad=True), torch.randn(2, requires_grad=True)))
    found = {name: crossing.role for name, crossing in crossings(index).items()}
    assert found == {"primals_1": CrossingRole.INPUT, "primals_2": CrossingRole.INPUT, "exp": CrossingRole.OUTPUT}
    extra = mlp.index().flow.boundary.of_role(CrossingRole.EXTRA)
    assert {crossing.role for crossing in extra} == {CrossingRole.EXTRA}
    assert len(extra) == 2


def test_bytes_add_up(transformer: Sample) -> None:
    """In all, by dtype and by module; a raw module's capture records no modules."""
    boundary = transformer.index().flow.boundary
    total = sum(crossing.nbytes or 0 for crossing in boundary)
    assert boundary.nbytes == total > 0
    assert boundary.by_dtype == {torch.float32: total}
    assert boundary.by_module == {None: total}
    assert repr(boundary) == f"<Boundary: 4 input, 19 extra; {total} bytes>"


def test_bytes_by_module(transformer: Sample) -> None:
    """``torch.compile`` records the module that made each value; none made the inputs."""
    graph = compiled(transformer.module, *transformer.args).joint
    assert graph is not None
    boundary = JointGraphIndex(graph).flow.boundary
    assert {*boundary.by_module} == {None, "", "self_attn", "norm1", "linear1", "linear2", "norm2"}
    assert boundary.by_module[None] == boundary.of_role(CrossingRole.INPUT).nbytes
    assert sum(boundary.by_module.values()) == boundary.nbytes


class Cast(nn.Module):
    """Keeps two dtypes for backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin().bfloat16().exp().sum()


def test_bytes_by_dtype() -> None:
    """Each tensor counts under its own."""
    boundary = JointGraphIndex(joint(Cast(), torch.randn(5, requires_grad=True))).flow.boundary
    assert boundary.by_dtype == {torch.float32: 20, torch.bfloat16: 10}


def test_symbolic_bytes_stay_symbolic() -> None:
    """Nothing is guarded on."""
    (x,) = symbolic(torch.randn(5, 8))
    index = JointGraphIndex(joint(MLP(), x))
    relu = next(one for one in index.flow.boundary if one.node.target is torch.ops.aten.relu.default)
    guards = len(relu.node.meta["val"].fake_mode.shape_env.guards)
    assert isinstance(relu.nbytes, torch.SymInt)
    assert str(relu.nbytes) == f"64*{x.size(0)}"
    assert isinstance(index.flow.boundary.nbytes, torch.SymInt)
    assert isinstance(index.flow.boundary.by_dtype[torch.float32], torch.SymInt)
    assert len(relu.node.meta["val"].fake_mode.shape_env.guards) == guards


def test_a_size_that_backward_reads_crosses_without_bytes() -> None:
    """It is a number."""
    graph = compiled(lambda x: x.sin().sum(0), torch.randn(5, 8, requires_grad=True), dynamic=True).joint
    assert graph is not None
    index = JointGraphIndex(graph)
    sizes = [one for one in index.flow.boundary if isinstance(one.node.meta["val"], torch.SymInt)]
    assert sizes
    assert all(one.nbytes is None and one.dtype is None for one in sizes)


def test_what_backward_returns_as_it_is_crosses(grad_inputs: Sample) -> None:
    """The output node reads it, be it a value that forward makes or an argument."""
    index = JointGraphIndex(copy_of(grad_inputs.joint.graph_module))
    result, argument = index.plain_outputs[0].node, index.plain_inputs[1].node
    output = index.graph.output_node()
    values, descs = entries(index.graph), output.meta["desc"]
    for entry, desc in ((result, d.ParamAOTInput("weight")), (argument, d.PlainAOTInput(0))):
        values[descs.index(d.GradAOTOutput(desc))] = entry
    set_outputs(index.graph, values, descs)
    found = {one.node: (one.readers, one.role) for one in index.flow.boundary}
    assert found == {
        argument: ((output,), CrossingRole.INPUT),
        result: ((output,), CrossingRole.OUTPUT),
    }


def test_what_a_write_in_backward_reads_crosses(mlp: Sample) -> None:
    """An effect of backward needs its operands, as an output does."""
    index = JointGraphIndex(mlp.copy())
    grad, bias = index.params["second.bias"].grad, index.params["second.bias"].node
    assert grad is not None
    assert bias.name not in crossings(index)
    with index.graph.inserting_before(index.graph.output_node()):
        write = index.graph.call_function(torch.ops.aten.copy_.default, (bias, grad.node))
    assert crossings(index)[bias.name].readers == (write,)


def test_what_dead_nodes_read_does_not_cross(mlp: Sample) -> None:
    """They are not run."""
    index = JointGraphIndex(mlp.copy())
    before = crossings(index)
    (tangent,), bias = (one.node for one in index.tangents.values()), index.params["second.bias"].node
    with index.graph.inserting_before(index.graph.output_node()):
        index.graph.call_function(torch.ops.aten.add.Tensor, (tangent, bias))
    assert crossings(index) == before


def test_an_attribute_of_the_module_does_not_cross(mlp: Sample) -> None:
    """It is there on both sides, as a tensor or as a subgraph."""
    module = mlp.copy()
    module.register_buffer("constant", torch.ones(4))
    index = JointGraphIndex(module)
    for record in (index.plain_outputs[0], index.params["second.bias"].grad):
        assert record is not None
        assert record.node is not None
        with index.graph.inserting_before(index.graph.output_node()):
            constant = next(iter(index.graph.find_nodes(op="get_attr")), None) or index.graph.get_attr("constant")
            product = index.graph.call_function(torch.ops.aten.mul.Tensor, (record.node, constant))
        record.node.replace_all_uses_with(product, delete_user_cb=lambda user: user.op == "output")
    assert index.flow.phase(constant) is Phase.FORWARD
    assert len(constant.users) == 2
    assert constant.name not in crossings(index)


def test_an_item_of_a_tensor_is_no_part_of_it(mlp: Sample) -> None:
    """Indexing computes something: where backward does it, the tensor crosses."""
    index = JointGraphIndex(mlp.copy())
    relu, backward = (
        index.graph.find_nodes(op="call_function", target=target)[0]
        for target in (torch.ops.aten.relu.default, torch.ops.aten.threshold_backward.default)
    )
    with index.graph.inserting_before(backward):
        item = index.graph.call_function(operator.getitem, (relu, slice(None)))
    backward.update_arg(1, item)
    assert item in crossings(index)[relu.name].readers
    assert item.name not in crossings(index)


@captured_nets
def test_both_halves_have_the_boundary_between_them(net: Callable[[], Sample]) -> None:
    """What the forward half saves is what the backward half reads, byte for byte."""
    forward, backward = map(JointGraphIndex, partition(net().joint))
    assert {*crossings(forward)} == {*crossings(backward)} == {*forward.saved} == {*backward.saved}
    assert forward.flow.boundary.nbytes == backward.flow.boundary.nbytes
    assert all(not one.readers for one in forward.flow.boundary)
    assert all(one.readers for one in backward.flow.boundary)
    assert {one.role for one in backward.flow.boundary} == {CrossingRole.INPUT}


def test_an_inference_graph_has_none(inference: Sample) -> None:
    """There is no backward."""
    boundary = inference.index().flow.boundary
    assert len(boundary) == boundary.nbytes == 0
    assert repr(boundary) == "<Boundary: nothing; 0 bytes>"


def test_each_layer_keeps_the_same(llama: Sample) -> None:
    """One more layer of a Llama keeps the same number of values more: the boundary is no rounded figure."""
    counts = [len(JointGraphIndex(joint(Llama(layers), *llama.args)).flow.boundary) for layers in (1, 2, 3)]
    assert counts[2] - counts[1] == counts[1] - counts[0] > 0
