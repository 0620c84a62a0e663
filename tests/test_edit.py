"""The steps of `index.edit()`: what each makes of a graph, and what is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives  # It registers the collectives' operators.
from torch import fx, nn
from torch._functorch._aot_autograd import descriptors as d

from jointgraph import (
    EditError,
    FindingCode,
    GradStatus,
    GraphKind,
    JointGraphIndex,
    Severity,
    SubclassError,
    UnknownNameError,
)
from tests.capture import (
    compiled,
    default_partition,
    fake_mesh,
    joint,
    min_cut_rematerialization_partition,
    partition,
    symbolic,
)
from tests.cases.models import two
from tests.graphs import copy_of, entries, placeholder, snapshot
from tests.models import Sample

aten = torch.ops.aten


def own(sample: Sample) -> JointGraphIndex:
    """An index of a copy of a sample's graph, with ``meta`` of its own."""
    module = sample.copy()
    for node in module.graph.nodes:
        node.meta = dict(node.meta)
    return JointGraphIndex(module)


def doubled(node: fx.Node) -> fx.Node:
    """Builds a multiplication by two."""
    return node.graph.call_function(aten.mul.Tensor, (node, 2))


def to(dtype: torch.dtype) -> Callable[[fx.Node], fx.Node]:
    """Builds a cast."""
    return lambda node: node.graph.call_function(aten._to_copy.default, (node,), {"dtype": dtype})


def problems(index: JointGraphIndex) -> list[str]:
    """What a check finds but notes."""
    return [str(finding) for finding in index.check() if finding.severity is not Severity.NOTE]


def order(graph: fx.Graph) -> list[str]:
    """The names of all nodes."""
    return [node.name for node in graph.nodes]


def refused(index: JointGraphIndex, step: Callable[[Any], object], match: str, error: type = EditError) -> None:
    """A step is refused with a message, and leaves the graph as it was: its code, its metadata, its descriptors."""
    before = snapshot(index.graph)
    with index.edit() as edit, pytest.raises(error, match=match):
        step(edit)
    assert snapshot(index.graph) == before


# wrap


def test_a_wrapped_input_is_read_through_the_new_nodes(mlp: Sample) -> None:
    """All that read the parameter reads the new node, which stands behind the placeholders and has a val."""
    index = own(mlp)
    weight = index.params["first.weight"]
    readers = [*weight.node.users]
    with index.edit() as edit:
        edit.wrap(weight, doubled)
    (new,) = weight.node.users
    assert [*new.users] == readers
    assert new.prev is index.tangents[d.PlainAOTOutput(0)].node
    assert new.meta["val"].shape == weight.val.shape
    assert problems(index) == []


def test_only_the_wrapped_slot_returns_the_new_node(many_outputs: Sample) -> None:
    """Results 0 and 2 are one node; its other readers, too, stay as they are."""
    index = own(many_outputs)
    first, third = index.plain_outputs[0], index.plain_outputs[2]
    old = first.node
    with index.edit() as edit:
        edit.wrap(first, doubled)
    assert first.node is not None
    assert first.node.args == (old, 2)
    assert old is not None
    assert first.node.prev is old
    assert third.node is old


def test_new_nodes_take_on_what_their_origin_carries(mlp: Sample) -> None:
    """A node behind a gradient is of the backward pass, one behind a parameter is not."""
    index = own(mlp)
    grad, weight = index.grads[d.ParamAOTInput("first.weight")], index.params["first.weight"]
    with index.edit() as edit:
        edit.wrap([grad, weight], doubled)
    assert grad.node is not None
    assert grad.node.meta["partitioner_tag"] == "is_backward"
    assert grad.node.meta["autograd_backward"] is True
    (new,) = weight.node.users
    assert new.meta["partitioner_tag"] == "is_forward"


def test_new_nodes_stand_behind_all_that_they_read(mlp: Sample) -> None:
    """An output's wrapper may read a node that comes later."""
    index = own(mlp)
    result, late = index.plain_outputs[0], index.grads[d.ParamAOTInput("second.bias")].node
    with index.edit() as edit:
        edit.wrap(result, lambda node: node.graph.call_function(aten.add.Tensor, (node, late)))
    assert result.node is not None
    assert result.node.prev is late
    assert problems(index) == []


def test_an_input_can_not_read_what_comes_after_its_readers(mlp: Sample) -> None:
    """That would be a circle, or need a sort of the whole graph."""
    index = own(mlp)
    late = index.grads[d.ParamAOTInput("first.bias")].node
    refused(
        index,
        lambda edit: edit.wrap(
            index.params["first.bias"], lambda node: node.graph.call_function(aten.add.Tensor, (node, late))
        ),
        "addmm reads primals_2, and comes before view_1",
    )


def test_an_input_that_nothing_reads_is_left_alone(three_answers: Sample) -> None:
    """No dead node is made for it."""
    index = own(three_answers)
    before = order(index.graph)
    with index.edit() as edit:
        edit.wrap(index.params["unused"], doubled)
    assert order(index.graph) == before


def test_values_that_follow_are_computed_anew(mlp: Sample) -> None:
    """With everything cast to half precision, all values behind the casts are of it."""
    index = own(mlp)
    with index.edit() as edit:
        edit.wrap([*index.params.values(), *index.plain_inputs.values(), *index.tangents.values()], to(torch.bfloat16))
        edit.wrap([*index.grads.values(), *index.plain_outputs.values()], to(torch.float32))
    assert problems(index) == []
    relu = next(node for node in index.graph.nodes if node.name == "relu")
    assert relu.meta["val"].dtype is torch.bfloat16


def test_a_value_that_can_not_follow_is_reported_on_leaving(mlp: Sample) -> None:
    """A parameter of another shape doesn't multiply with the input; values that followed so far are as before."""
    index = own(mlp)
    with pytest.raises(EditError, match=r"aten.addmm.default does not work on the values of the arguments of addmm"):  # noqa: SIM117
        with index.edit() as edit:
            edit.set_val(index.params["first.weight"], torch.empty(3, 3))
    transposed = next(node for node in index.graph.nodes if node.name == "t")
    assert [*transposed.meta["val"].shape] == [8, 16]


def test_a_sharded_parameter() -> None:
    """Its shard is gathered before use and its gradient scattered: the graph is whole again."""
    with fake_mesh(4) as mesh:
        index = JointGraphIndex(joint(nn.Linear(8, 16, bias=False), torch.randn(2, 8)))
        weight, collectives = index.params["weight"], torch.ops._c10d_functional
        group = mesh.get_group().group_name

        def waited(node: fx.Node) -> fx.Node:
            return node.graph.call_function(collectives.wait_tensor.default, (node,))

        def gathered(node: fx.Node) -> fx.Node:
            arguments = (node, 4, group)
            return waited(node.graph.call_function(collectives.all_gather_into_tensor.default, arguments))

        def scattered(node: fx.Node) -> fx.Node:
            arguments = (node, "sum", 4, group)
            return waited(node.graph.call_function(collectives.reduce_scatter_tensor.default, arguments))

        with index.edit() as edit:
            edit.set_val(weight, torch.empty(4, 8))
            edit.wrap(weight, gathered)
            edit.wrap(index.grads.values(), scattered)
        assert problems(index) == []
    assert [*weight.val.shape] == [4, 8]
    assert weight.grad is not None
    assert [*weight.grad.val.shape] == [4, 8]


def test_what_writes_to_an_input_still_does() -> None:
    """Under ``torch.compile`` a mutation stays in the graph as ``copy_`` to the placeholder."""
    norm = nn.BatchNorm1d(3)
    graph = compiled(norm, torch.randn(4, 3)).joint
    assert graph is not None
    index = JointGraphIndex(graph)
    targets = {node.args[0]: node for node in graph.graph.nodes if node.target is aten.copy_.default}
    with index.edit() as edit:
        edit.wrap([index.inputs[desc] for desc in index.inputs if index.inputs[desc].node in targets], doubled)
    assert targets
    for target, node in targets.items():
        assert node.args[0] is target


@pytest.mark.parametrize(
    ("builds", "match"),
    [
        (lambda node: node, "which it didn't build"),
        (lambda node: 3, "returned 3, which it didn't build"),
        (lambda node: node.graph.call_function(aten.mm.default, (node, node)), "aten.mm.default does not work"),
    ],
)
def test_what_can_not_stand_for_a_value_is_refused(mlp: Sample, builds: Callable[[fx.Node], Any], match: str) -> None:
    """And taken out again, for an input and for an output, and for those that come before it in one step."""
    index = own(mlp)
    weight = index.params["first.weight"]
    refused(index, lambda edit: edit.wrap(weight, builds), match)
    refused(index, lambda edit: edit.wrap(weight.grad, builds), match)

    def one_bad(node: fx.Node) -> Any:
        return builds(node) if node is weight.node else doubled(node)

    refused(index, lambda edit: edit.wrap([index.params["first.bias"], weight], one_bad), match)


def rewires(node: fx.Node) -> fx.Node:
    """Does what wrap() is there for."""
    new = doubled(node)
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    return new


def reads_another_graph(node: fx.Node) -> fx.Node:
    """Builds on what is not there."""
    return node.graph.call_function(aten.add.Tensor, (node, fx.Graph().placeholder("strange")))


def writes(node: fx.Node) -> fx.Node:
    """Changes the value itself."""
    return node.graph.call_function(aten.mul_.Tensor, (node, 2))


@pytest.mark.parametrize(
    ("builds", "match"),
    [
        (rewires, "changed what reads it"),
        (reads_another_graph, "reads strange, which is not in this graph"),
        (writes, "aten.mul_.Tensor writes to what it is given"),
        (lambda node: node.graph.placeholder("more"), "is a placeholder"),
    ],
)
def test_a_builder_only_adds_nodes(mlp: Sample, builds: Callable[[fx.Node], fx.Node], match: str) -> None:
    """Of this graph, that compute something; the readers are wrap()'s business."""
    index = own(mlp)
    refused(index, lambda edit: edit.wrap(index.params["first.weight"], builds), match)
    refused(index, lambda edit: edit.wrap(index.grads[d.ParamAOTInput("first.weight")], builds), match)


def test_a_builder_may_choose_the_insert_point(mlp: Sample) -> None:
    """As one does in FX; the nodes are then put where wrap() puts them."""
    index = own(mlp)

    def builds(node: fx.Node) -> fx.Node:
        with node.graph.inserting_after(node):
            return doubled(node)

    with index.edit() as edit:
        edit.wrap(index.params["first.weight"], builds)
    (new,) = index.params["first.weight"].node.users
    assert new.prev is index.tangents[d.PlainAOTOutput(0)].node


def test_a_step_in_a_step_is_refused(mlp: Sample) -> None:
    """It could not be undone with it."""
    index = own(mlp)

    def builds(node: fx.Node) -> fx.Node:
        edits[0].name_nodes()
        return doubled(node)

    edits: list[Any] = []

    def step(edit: Any) -> None:
        edits.append(edit)
        edit.wrap(index.params["first.weight"], builds)

    refused(index, step, "A step is under way")


@pytest.mark.parametrize("how", [default_partition, min_cut_rematerialization_partition])
def test_partitioners_take_wrapped_tangents(mlp: Sample, how: Callable[..., Any]) -> None:
    """What is built on a tangent stands with its readers, behind all that the default one takes for forward's."""
    made = joint(mlp.module, *mlp.args)
    index = JointGraphIndex(made)
    with index.edit() as edit:
        edit.wrap(index.tangents.values(), doubled)
    forward, backward = partition(made, how)
    for half in (forward, backward):
        half.graph.lint()
    assert [node for node in backward.graph.nodes if node.target is aten.mul.Tensor]


def test_partitioners_take_a_wrapped_gradient_that_is_the_tangent() -> None:
    """It is returned as it came."""

    class Shift(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.randn(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.shift

    made = joint(Shift(), torch.randn(3))
    index = JointGraphIndex(made)
    assert index.params["shift"].grad is not None
    with index.edit() as edit:
        edit.wrap([index.params["shift"].grad, *index.tangents.values()], doubled)
    backward = partition(made).backward
    assert len([node for node in backward.graph.nodes if node.target is aten.mul.Tensor]) == 2


def test_an_input_and_the_output_that_returns_it(many_outputs: Sample) -> None:
    """Both are wrapped in one step, the input first."""
    index = own(many_outputs)
    x = index.plain_inputs[0]
    with index.edit() as edit:
        edit.wrap([index.plain_outputs[5], x], doubled)
    node = index.plain_outputs[5].node
    assert node is not None
    assert isinstance(node.args[0], fx.Node)
    assert node.args[0].args == (x.node, 2)
    assert problems(index) == []


def test_a_forward_graph_saves_what_backward_knows() -> None:
    """A wrapped parameter is still saved itself, under its name; what is saved is not edited."""
    halves = partition(
        joint(
            nn.Linear(3, 3),
            torch.randn(2, 3),
        )
    )
    index, names = JointGraphIndex(halves.forward), [*JointGraphIndex(halves.backward).saved]
    saved = next(iter(index.saved.values()))
    with index.edit() as edit:
        edit.wrap([*index.params.values(), *index.plain_inputs.values()], doubled)
    assert [*index.saved] == names
    refused(index, lambda edit: edit.wrap(saved, doubled), "links two graphs")
    refused(index, lambda edit: edit.replace(saved, index.params["bias"].node), "links two graphs")
    refused(index, lambda edit: edit.remove(saved), "links two graphs")
    refused(
        index, lambda edit: edit.add_output(None, d.SavedForBackwardsAOTOutput(9)), "partition the joint graph anew"
    )


def test_an_error_of_the_builder_is_its_own(mlp: Sample) -> None:
    """It is raised as it is, and what was built is taken out."""
    index = own(mlp)

    def builds(node: fx.Node) -> fx.Node:
        doubled(node)
        raise ZeroDivisionError("of its own")

    refused(index, lambda edit: edit.wrap(index.params["first.weight"], builds), "of its own", ZeroDivisionError)


def test_a_slot_without_a_node_can_not_be_wrapped(three_answers: Sample, many_outputs: Sample) -> None:
    """A gradient that is missing, and a constant."""
    index = own(three_answers)
    slot = index.outputs[d.GradAOTOutput(d.ParamAOTInput("unused"))]
    refused(index, lambda edit: edit.wrap(slot, doubled), r"output\[2\] holds None: there is no node to wrap")
    index = own(many_outputs)
    refused(index, lambda edit: edit.wrap(index.plain_outputs[4], doubled), "holds 7")


def test_records_of_another_index_are_refused(mlp: Sample) -> None:
    """A record belongs to one graph."""
    strange = own(mlp).params["first.weight"]
    refused(own(mlp), lambda edit: edit.wrap(strange, doubled), "is a record of another index")


def test_leaves_of_a_subclass_are_wrapped_one_by_one() -> None:
    """The value as a whole has no node."""
    index = JointGraphIndex(copy_of(joint(nn.Linear(3, 3), two(2, 3)).graph_module))
    value, result = index.plain_inputs[0], index.plain_outputs[0]
    refused(index, lambda edit: edit.wrap(value, doubled), "is a tensor subclass with 2 leaves", SubclassError)
    with index.edit() as edit:
        edit.wrap([value.leaves["a"], result.leaves["b"]], doubled)
    (new,) = value.leaves["a"].node.users
    assert new.target is aten.mul.Tensor
    made = result.leaves["b"].node
    assert made is not None
    assert made.target is aten.mul.Tensor


# replace


def test_a_replaced_gradient_is_the_new_node(mlp: Sample) -> None:
    """The list, the record and the node's roles agree."""
    index = own(mlp)
    grad = index.grads[d.ParamAOTInput("first.bias")]
    other = index.params["first.bias"].node
    with index.edit() as edit:
        edit.replace(grad, other)
    assert grad.node is other
    assert index.roles(other) == (index.params["first.bias"], grad)


def test_a_gradient_of_another_shape_is_reported_on_leaving(mlp: Sample) -> None:
    """With the finding, as the input could still have been changed to it inside the block."""
    index = own(mlp)
    with pytest.raises(EditError, match=r"has shape \[16, 8\] instead of \[16\]") as caught:  # noqa: SIM117
        with index.edit() as edit:
            edit.replace(index.grads[d.ParamAOTInput("first.bias")], index.params["first.weight"].node)
    assert [finding.code for finding in caught.value.findings] == [FindingCode.GRADIENT_MISMATCH]


def test_what_is_no_node_of_the_graph_is_not_returned(mlp: Sample) -> None:
    """One of another graph, an erased one, the output node, a number."""
    index = own(mlp)
    grad = index.grads[d.ParamAOTInput("first.bias")]
    with index.graph.inserting_before(index.graph.output_node()):
        erased = index.graph.call_function(aten.neg.default, (grad.node,))
    index.graph.erase_node(erased)
    refused(index, lambda edit: edit.replace(grad, placeholder(mlp.graph, "primals_1")), "is of another graph")
    refused(index, lambda edit: edit.replace(grad, erased), "was erased")
    refused(index, lambda edit: edit.replace(grad, index.graph.output_node()), "is the output node")
    refused(index, lambda edit: edit.replace(grad, 3), "3 is no node")
    refused(index, lambda edit: edit.replace(index.params["first.bias"], grad.node), "is an input")


# add_input


def test_a_new_input_goes_behind_its_kind(mlp: Sample) -> None:
    """A buffer, of which there is none yet, behind the last primal; a parameter behind the parameters."""
    index = own(mlp)
    with index.edit() as edit:
        buffer = edit.add_input(d.BufferAOTInput("scale"), torch.ones(3))
        param = edit.add_input(d.ParamAOTInput("third"), torch.ones(2))
    kinds = [record.kind.value for record in index.inputs.values()]
    assert kinds == ["param"] * 5 + ["plain", "buffer", "tangent"]
    assert buffer is index.buffers["scale"]
    assert param is index.params["third"]
    assert [*param.val.shape] == [2]
    assert param.val.fake_mode is index.params["first.bias"].val.fake_mode


def test_a_new_input_behind_a_named_one(mlp: Sample) -> None:
    """Its gradient's empty place stands at the same place among the gradients'."""
    index = own(mlp)
    with index.edit() as edit:
        new = edit.add_input(d.PlainAOTInput(7), torch.ones(3), after=index.params["first.weight"])
    assert new.position == 1
    descs = index.graph.output_node().meta["desc"]
    assert descs[2] is None
    assert entries(index.graph)[2] is None
    assert new.grad_status is GradStatus.NOT_REQUESTED


def test_placeholders_have_names_that_partitioners_read(mlp: Sample) -> None:
    """``tangents_*`` and others, which are unique."""
    index = own(mlp)
    with index.edit() as edit:
        edit.add_output(index.plain_outputs[0].node, d.PlainAOTOutput(1))
        tangent = edit.add_input(d.TangentAOTInput(d.PlainAOTOutput(1)), torch.ones(5, 4))
        param = edit.add_input(d.ParamAOTInput("third"), torch.ones(2))
    assert "tangents" in str(tangent.node.target)
    assert str(param.node.target).startswith("primals_")
    targets = [node.target for node in index.graph.find_nodes(op="placeholder")]
    assert len({*targets}) == len(targets)
    assert [*index.tangents] == [d.PlainAOTOutput(0), d.PlainAOTOutput(1)]


def test_a_graph_with_new_slots_is_called_as_joint_graphs_are(mlp: Sample) -> None:
    """With primals and tangents, returning results and gradients."""
    index = own(mlp)
    tangent = index.tangents[d.PlainAOTOutput(0)].node

    with index.graph.inserting_before(index.graph.output_node()):
        summed = index.graph.call_function(aten.sum.dim_IntList, (tangent, [0]))
    summed.meta["val"] = index.grads[d.ParamAOTInput("second.bias")].val
    with index.edit() as edit:
        shift = edit.add_input(d.PlainAOTInput(1), torch.ones(4))
        edit.wrap(index.plain_outputs[0], lambda node: node.graph.call_function(aten.add.Tensor, (node, shift.node)))
        edit.add_output(index.plain_outputs[0].node, d.PlainAOTOutput(1))
        edit.add_output(summed, d.GradAOTOutput(d.PlainAOTInput(1)))
    module = index.graph.owning_module
    assert module is not None
    x, shift_by, tangent_in = torch.randn(5, 8), torch.randn(4), torch.randn(5, 4)
    params = [param.detach() for param in mlp.module.parameters()]
    (first, second), grads = module([*params, x, shift_by], [tangent_in])
    torch.testing.assert_close(first, mlp.module(x) + shift_by)
    assert first is second
    torch.testing.assert_close(grads[5], tangent_in.sum(0))
    assert len(grads) == 6


@pytest.mark.parametrize(
    ("desc", "match"),
    [
        (d.ParamAOTInput("first.weight"), "the same descriptor as placeholder primals_1"),
        (d.TangentAOTInput(d.PlainAOTOutput(8)), "which is no output of this joint graph"),
        (d.SubclassGetAttrAOTInput(d.ParamAOTInput("first.weight"), "a"), "a value is one slot or leaves"),
    ],
)
def test_inputs_that_make_no_graph_are_refused(mlp: Sample, desc: d.AOTInput, match: str) -> None:
    """The graph would break a rule."""
    refused(own(mlp), lambda edit: edit.add_input(desc, torch.ones(2)), match)


def test_what_the_index_leaves_out_is_not_added(mlp: Sample) -> None:
    """It could not give out the record."""

    class NoBuffers(JointGraphIndex):
        def keeps_input(self, desc: d.AOTInput) -> bool:
            return not isinstance(desc, d.BufferAOTInput)

    index = NoBuffers(own(mlp).graph)
    refused(index, lambda edit: edit.add_input(d.BufferAOTInput("b"), torch.ones(2)), "leaves out")


# add_output


def test_a_new_gradient_takes_the_place_that_is_kept_for_it(three_answers: Sample) -> None:
    """The list is as long as before: the frozen parameter is trained now."""
    index = own(three_answers)
    frozen, count = index.params["frozen"], len(entries(index.graph))
    with index.edit() as edit:
        grad = edit.add_output(frozen.node, d.GradAOTOutput(d.ParamAOTInput("frozen")))
    assert frozen.grad is grad
    assert len(entries(index.graph)) == count
    assert problems(index) == []


def test_a_new_result_goes_behind_the_results(many_outputs: Sample) -> None:
    """And not behind the gradients."""
    index = own(many_outputs)
    with index.edit() as edit:
        new = edit.add_output(index.plain_inputs[0].node, d.PlainAOTOutput(9))
    assert new.position == 7
    assert [*index.plain_outputs] == [*range(7), 9]


def test_outputs_that_make_no_graph_are_refused(mlp: Sample) -> None:
    """One that is there, a gradient of a stranger, a saved activation's place in another graph."""
    index = own(mlp)
    node = index.params["first.weight"].node
    refused(index, lambda edit: edit.add_output(node, d.PlainAOTOutput(0)), "the same descriptor as")
    stranger = d.GradAOTOutput(d.ParamAOTInput("no such"))
    refused(index, lambda edit: edit.add_output(node, stranger), "which is no input of this joint graph")


def test_what_is_no_descriptor_is_refused(mlp: Sample) -> None:
    """``None``, and one of the other side."""
    index = own(mlp)
    refused(index, lambda edit: edit.add_output(index.params["first.weight"].node, None), "None is no AOTOutput")
    refused(index, lambda edit: edit.add_input(d.PlainAOTOutput(3), torch.ones(2)), "is no AOTInput")


def test_many_slots_at_once(mlp: Sample) -> None:
    """The state of an optimizer: an input and an output for each parameter; gradients no more."""
    index = own(mlp)
    names = [*index.params]
    with index.edit() as edit:
        states = edit.add_inputs({d.BufferAOTInput(f"{n}.m"): torch.ones(p.val.shape) for n, p in index.params.items()})
        edit.add_outputs({d.InputMutationAOTOutput(s.desc): p.grad.node for s, p in zip(states, index.params.values())})  # type: ignore[union-attr]
        edit.remove(index.grads.values())
    assert [*index.buffers] == [f"{name}.m" for name in names]
    assert len(index.mutations) == 4
    assert not index.grads
    assert [record.mutation is not None for record in states] == [True] * 4
    assert problems(index) == []


# remove


def test_a_removed_gradient_leaves_its_place(mlp: Sample) -> None:
    """As if the parameter were frozen."""
    index = own(mlp)
    weight = index.params["first.weight"]
    count = len(entries(index.graph))
    assert weight.grad is not None
    with index.edit() as edit:
        edit.remove(weight.grad)
    assert weight.grad_status is GradStatus.NOT_REQUESTED
    assert len(entries(index.graph)) == count


def test_a_removed_input_goes_with_the_place_of_its_gradient(three_answers: Sample) -> None:
    """A gradient that was asked for in vain included."""
    index = own(three_answers)
    count = len(entries(index.graph))
    with index.edit() as edit:
        edit.remove(index.params["unused"])
    assert "unused" not in index.params
    assert len(entries(index.graph)) == count - 1
    assert problems(index) == []


def test_what_others_need_is_not_removed(mlp: Sample, batch_norm: Sample) -> None:
    """An input that is read, one with a gradient or a new value, and an output with a tangent."""
    index = own(mlp)
    weight = index.params["first.weight"]
    refused(index, lambda edit: edit.remove(weight), "is read by t:")
    refused(index, lambda edit: edit.remove(index.plain_outputs[0]), "has a tangent")
    refused(index, lambda edit: edit.remove(index.plain_outputs[0].leaves[""]), "is a part of a value")
    weight.node.replace_all_uses_with(index.params["second.weight"].node)
    refused(index, lambda edit: edit.remove(weight), "has a gradient")
    index = own(batch_norm)
    mean = index.buffers["norm.running_mean"]
    mean.node.replace_all_uses_with(index.params["norm.weight"].node)
    refused(index, lambda edit: edit.remove(mean), "has a new value")


def test_a_subclass_is_removed_with_all_its_leaves() -> None:
    """Its gradient leaves one empty place."""
    index = JointGraphIndex(copy_of(joint(nn.Linear(3, 3), two(2, 3)).graph_module))
    weight = index.params["weight"]
    assert weight.grad is not None
    count = len(entries(index.graph))
    with index.edit() as edit:
        edit.remove(weight.grad)
    assert len(entries(index.graph)) == count - 1
    assert weight.grad_status is GradStatus.NOT_REQUESTED


# set_val, rename, name_nodes


def test_inputs_of_another_type(mlp: Sample) -> None:
    """All values follow, results and gradients too."""
    index = own(mlp)
    with index.edit() as edit:
        for record in index.inputs.values():
            edit.set_val(record, torch.empty(record.val.shape, dtype=torch.bfloat16))
    assert problems(index) == []
    assert {output.val.dtype for output in index.outputs.values()} == {torch.bfloat16}
    assert "tensor_meta" not in index.params["first.weight"].node.meta


def test_a_symbolic_batch_becomes_a_number() -> None:
    """A value that may be equal already follows, too."""
    made = joint(nn.Tanh(), *symbolic(torch.randn(5, 3, requires_grad=True)))
    index = JointGraphIndex(made)
    with index.edit() as edit:
        for record in (*index.plain_inputs.values(), *index.tangents.values()):
            edit.set_val(record, torch.empty(7, 3))
    assert problems(index) == []
    vals = [node.meta["val"] for node in index.graph.nodes if node.op == "call_function"]
    assert {tuple(val.shape) for val in vals} == {(7, 3)}


def test_symbols_of_another_fake_mode_are_refused(mlp: Sample) -> None:
    """They mean nothing in this one."""
    index = own(mlp)
    (strange,) = symbolic(torch.randn(5, 3))
    refused(index, lambda edit: edit.set_val(index.plain_inputs[0], strange), "of another fake mode")


def test_values_that_could_not_follow_are_not_forgotten(mlp: Sample) -> None:
    """The next block, too, is refused, until they fit."""
    index = own(mlp)
    for _ in range(2):
        with pytest.raises(EditError, match="does not work"):  # noqa: SIM117
            with index.edit() as edit:
                edit.set_val(index.params["first.weight"], torch.empty(3, 3))
    with index.edit() as edit:
        edit.set_val(index.params["first.weight"], torch.empty(16, 8))
    assert problems(index) == []


def test_an_output_has_no_val_to_set(mlp: Sample) -> None:
    """It follows from what computes it."""
    index = own(mlp)
    refused(index, lambda edit: edit.set_val(index.plain_outputs[0], torch.ones(2)), "follows from what computes it")


def test_a_renamed_parameter_is_so_in_every_descriptor(mlp: Sample) -> None:
    """In its own, and in its gradient's; two may trade names."""
    index = own(mlp)
    weight, bias = index.params["first.weight"].node, index.params["first.bias"].node
    grad = index.grads[d.ParamAOTInput("first.weight")].node
    with index.edit() as edit:
        edit.rename({"first.weight": "first.bias", "first.bias": "first.weight"})
    assert index.params["first.bias"].node is weight
    assert index.params["first.weight"].node is bias
    assert index.grads[d.ParamAOTInput("first.bias")].node is grad
    assert problems(index) == []


def test_names_that_collide_or_are_unknown_are_refused(mlp: Sample) -> None:
    """Whether the other keeps its name or gets a new one."""
    index = own(mlp)
    refused(index, lambda edit: edit.rename({"first.weight": "first.bias"}), "would be named 'first.bias'")
    refused(index, lambda edit: edit.rename({"first.weight": "w", "first.bias": "w"}), "would be named 'w'")
    refused(index, lambda edit: edit.rename({"first.wait": "w"}), "Did you mean 'first.weight'", UnknownNameError)


def test_placeholders_named_by_their_parameters(mlp: Sample) -> None:
    """The printed code says what is what, and still runs."""
    index = own(mlp)
    with index.edit() as edit:
        edit.rename({"second.bias": "my_tangents"})
        edit.name_nodes()
    names = [node.name for node in index.graph.find_nodes(op="placeholder")]
    assert names == ["first_weight", "first_bias", "second_weight", "primals_4", "primals_5", "tangents_1"]
    module = index.graph.owning_module
    assert module is not None
    assert "first_weight, first_bias" in module.code
    x, tangent = torch.randn(5, 8), torch.randn(5, 4)
    (result,), _ = module([*(param.detach() for param in mlp.module.parameters()), x], [tangent])
    torch.testing.assert_close(result, mlp.module(x))


def test_names_that_torch_takes_for_something_else_are_not_given(mlp: Sample) -> None:
    """By which partitioners know tangents and seeds, and what FX calls a function's first argument."""
    index = own(mlp)
    names = ["bwd.seed_offset", "self", "a.tangents_", "primals"]
    with index.edit() as edit:
        edit.rename(dict(zip(index.params, names)))
        edit.name_nodes()
    assert [param.node.name for param in index.params.values()] == [f"primals_{n}" for n in (1, 2, 3, 4)]


def test_the_halves_keep_their_names(mlp: Sample) -> None:
    """They are linked by them."""
    for half in partition(mlp.joint):
        index = JointGraphIndex(half)
        assert index.kind in {GraphKind.FORWARD, GraphKind.BACKWARD}
        refused(index, lambda edit: edit.name_nodes(), "belong together by node names")


# The block.


def test_steps_are_done_inside_the_block(mlp: Sample) -> None:
    """Not before it, not after it, and one block is entered once."""
    index = own(mlp)
    edit = index.edit()
    with pytest.raises(EditError, match="Steps are done inside the block"):
        edit.name_nodes()
    with edit, pytest.raises(EditError, match="has begun already"):
        edit.__enter__()
    with pytest.raises(EditError, match="Steps are done inside the block"):
        edit.name_nodes()


def test_a_reading_block_is_not_edited_in(mlp: Sample) -> None:
    """It answers from one reading."""
    index = own(mlp)
    with index.reading(), pytest.raises(EditError, match="only asks"):
        index.edit().__enter__()


def test_an_exception_in_the_block_says_what_was_done(mlp: Sample) -> None:
    """In a note; it passes through as it is."""
    index = own(mlp)
    with pytest.raises(UnknownNameError) as caught:  # noqa: PT012, SIM117  # The block is what is tested.
        with index.edit() as edit:
            edit.rename({"first.weight": "w"})
            edit.rename({"first.weight": "v"})
    (note,) = caught.value.__notes__
    assert note == (
        "These steps were done, and stand: rename first.weight. "
        "The graph has not been checked, nor its module recompiled."
    )
    assert "w" in index.params


def test_a_graph_that_was_broken_by_hand_is_reported_on_leaving(mlp: Sample) -> None:
    """Plain FX calls inside the block are checked with its steps."""
    index = own(mlp)
    with pytest.raises(EditError, match="7 entries and 6 descriptors") as caught:  # noqa: SIM117
        with index.edit():
            index.graph.output_node().args = ([*entries(index.graph), None],)
    assert [finding.code for finding in caught.value.findings] == [FindingCode.SLOT_COUNT]


def test_the_module_is_recompiled(mlp: Sample) -> None:
    """Whether the index was built on it or on its graph."""
    module = mlp.copy()
    for holder in (module, module.graph):
        index = JointGraphIndex(holder)
        with index.edit() as edit:
            edit.wrap(index.plain_outputs[0], doubled)
    assert module.code.count("torch.ops.aten.mul.Tensor") == 2


def test_metadata_that_halves_share_is_not_written_to(mlp: Sample) -> None:
    """Partitioned nodes have the ``meta`` of the joint graph's."""
    module = mlp.copy()
    index = JointGraphIndex(module)
    half = fx.GraphModule(module, fx.Graph())
    copies: dict[fx.Node, fx.Node] = {}
    half.graph.output(half.graph.graph_copy(module.graph, copies))
    for node, copied in copies.items():
        copied.meta = node.meta
    before = {node: dict(node.meta) for node in copies.values()}
    with index.edit() as edit:
        edit.rename({"first.weight": "w"})
        edit.set_val(index.params["w"], torch.empty(16, 8))
        edit.name_nodes()
    assert {node: dict(node.meta) for node in copies.values()} == before
