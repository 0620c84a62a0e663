"""Views and records follow the graph through edits, or say that it changed."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import fx, nn
from torch._functorch._aot_autograd import descriptors as d

from jointgraph import GradStatus, InputKind, JointGraphIndex, StaleIndexError, UnknownNameError
from jointgraph.slots import Slots
from tests.capture import joint, partition
from tests.cases.models import two
from tests.graphs import copy_of, entries, set_outputs

W, B, FROZEN = (d.ParamAOTInput(name) for name in ("weight", "bias", "frozen"))


class Scaled(nn.Module):
    """A layer with a frozen scale."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.bias = nn.Parameter(torch.randn(3))
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight + self.bias).relu() * self.frozen


@pytest.fixture
def index() -> JointGraphIndex:
    """An index of a graph of its own."""
    return JointGraphIndex(copy_of(joint(Scaled(), torch.randn(2, 3)).graph_module))


def descriptors(index: JointGraphIndex) -> list[d.AOTOutput | None]:
    """The graph's own list of output descriptors."""
    descs: list[d.AOTOutput | None] = index.graph.output_node().meta["desc"]
    return descs


def doubled(node: fx.Node) -> fx.Node:
    """A new node that doubles another."""
    with node.graph.inserting_after(node):
        return node.graph.call_function(torch.ops.aten.mul.Tensor, (node, 2))


def replaced_placeholder(index: JointGraphIndex, desc: d.AOTInput) -> fx.Node:
    """A new placeholder in the place of one, with its descriptor."""
    old = index[desc].node
    with index.graph.inserting_before(old):
        new = index.graph.placeholder(f"new_{old.name}")
    new.meta = dict(old.meta)
    old.replace_all_uses_with(new)
    index.graph.erase_node(old)
    return new


def test_a_swapped_output_entry_is_the_answer_at_once(index: JointGraphIndex) -> None:
    """The gradient's record, its view and its node's roles all show the new node."""
    grad = index.grads[W]
    old = grad.node
    assert old is not None
    new = doubled(old)
    index.graph.output_node().replace_input_with(old, new)
    assert grad.node is new
    assert index.params["weight"].grad is grad
    assert index.grads[W].node is new
    assert index.roles(new) == (grad,)
    assert index.roles(old) == ()


def test_a_replaced_placeholder_is_the_answer_at_once(index: JointGraphIndex) -> None:
    """A record follows its descriptor, and stays the record that views give out."""
    weight, grad = index.params["weight"], index.grads[W]
    new = replaced_placeholder(index, W)
    assert weight.node is new
    assert index.params["weight"] is weight
    assert weight.grad is grad
    assert index.roles(new) == (weight,)


def test_a_gradient_that_becomes_none_is_missing(index: JointGraphIndex) -> None:
    """The slot still asks for one."""
    weight = index.params["weight"]
    values = [
        None if desc == d.GradAOTOutput(W) else value for value, desc in zip(entries(index.graph), descriptors(index))
    ]
    index.graph.output_node().args = (values,)
    assert weight.grad is None
    assert weight.grad_status is GradStatus.MISSING
    assert W not in index.grads


def test_a_gradient_described_in_place_is_found(index: JointGraphIndex) -> None:
    """An edit of the descriptor list itself, which no FX hook sees."""
    frozen = index.params["frozen"]
    statuses = [frozen.grad_status]
    descs = descriptors(index)
    descs[descs.index(None)] = d.GradAOTOutput(FROZEN)
    statuses.append(frozen.grad_status)
    assert statuses == [GradStatus.NOT_REQUESTED, GradStatus.MISSING]


def test_descriptors_that_trade_places_take_their_answers_along(index: JointGraphIndex) -> None:
    """The descriptor says what a slot is."""
    weight, bias = index.params["weight"], index.params["bias"]
    assert weight.grad is not None
    assert bias.grad is not None
    of_weight, of_bias = weight.grad.node, bias.grad.node
    descs = descriptors(index)
    one, other = descs.index(d.GradAOTOutput(W)), descs.index(d.GradAOTOutput(B))
    descs[one], descs[other] = descs[other], descs[one]
    assert weight.grad.node is of_bias
    assert bias.grad.node is of_weight


def test_moved_placeholders_have_new_positions(index: JointGraphIndex) -> None:
    """Positions and the order of views are those of the graph now."""
    first, *_, last = index.inputs.values()
    before = [last.position, first.position]
    first.node.prepend(last.node)
    assert [last.position, first.position] == [0, 1] != before
    assert next(iter(index.inputs)) == last.desc


def test_an_added_output_shifts_the_others(index: JointGraphIndex) -> None:
    """Values stay with their descriptors."""
    grad = index.grads[W]
    node, position = grad.node, grad.position
    extra = index.params["weight"].node
    set_outputs(index.graph, [extra, *entries(index.graph)], [d.PlainAOTOutput(7), *descriptors(index)])
    assert grad.node is node
    assert grad.position == position + 1
    assert index.plain_outputs[7].node is extra


def test_a_renamed_descriptor_retires_its_record(index: JointGraphIndex) -> None:
    """The old name is gone from the index, the new one is there."""
    frozen = index.params["frozen"]
    frozen.node.meta["desc"] = d.ParamAOTInput("scale")
    for ask in (lambda: frozen.node, lambda: frozen.grad, lambda: frozen.name, lambda: frozen.nbytes):
        with pytest.raises(StaleIndexError, match=r"target='frozen'\) is not in the graph any more"):
            ask()
    assert "no longer in the graph" in repr(frozen)
    assert index.params["scale"].node.meta["desc"] == d.ParamAOTInput("scale")
    with pytest.raises(UnknownNameError):
        index.params["frozen"]


def test_a_half_done_edit_is_no_answer(index: JointGraphIndex) -> None:
    """An output entry without a descriptor leaves the graph malformed, until that is added."""
    output = index.graph.output_node()
    output.args = ([*entries(index.graph), None],)
    with pytest.raises(StaleIndexError, match=r"outputs were added or removed.* finish the edit first"):
        len(index.outputs)
    output.meta["desc"] = [*descriptors(index), None]
    assert W in index.grads


def test_a_rebuilt_output_node_is_followed(index: JointGraphIndex) -> None:
    """A pass may erase the output node and make another."""
    grad, values, descs = index.grads[W], entries(index.graph), descriptors(index)
    node = grad.node
    index.graph.erase_node(index.graph.output_node())
    with pytest.raises(StaleIndexError, match="the output node was erased"):
        _ = grad.node
    index.graph.output(values).meta["desc"] = descs
    assert grad.node is node


def test_equal_descriptors_are_as_good(index: JointGraphIndex) -> None:
    """A list of descriptors may be replaced by a deep copy."""
    grad = index.grads[W]
    node = grad.node
    index.graph.output_node().meta["desc"] = copy.deepcopy(descriptors(index))
    index.params["weight"].node.meta["desc"] = copy.deepcopy(W)
    assert grad.node is node
    assert index.params["weight"].grad is grad


def test_a_loop_over_a_view_may_edit_the_graph(index: JointGraphIndex) -> None:
    """It goes through what was there when it began."""
    seen = []
    for name, param in index.params.items():
        new = replaced_placeholder(index, param.desc)
        assert param.node is new
        seen.append(name)
    assert seen == ["weight", "bias", "frozen"]


def test_a_leaf_follows_its_slot() -> None:
    """A leaf of a tensor subclass shows what is in its slot now."""
    gm = copy_of(joint(nn.Linear(3, 3), two(2, 3)).graph_module)
    index = JointGraphIndex(gm)
    leaf = index.plain_inputs[0].leaves["a"]
    old = leaf.node
    with gm.graph.inserting_before(old):
        new = gm.graph.placeholder("new")
    new.meta = dict(old.meta)
    old.replace_all_uses_with(new)
    gm.graph.erase_node(old)
    assert leaf.node is new
    assert new in index.plain_inputs[0].nodes


def test_leaves_that_trade_places_are_in_their_new_order() -> None:
    """The order of leaves is that of the slots now."""
    gm = copy_of(joint(nn.Linear(3, 3), two(2, 3)).graph_module)
    value = JointGraphIndex(gm).plain_inputs[0]
    first, second = value.nodes
    assert [*value.leaves] == ["a", "b"]
    first.prepend(second)
    assert value.nodes == (second, first)
    assert [*value.leaves] == ["b", "a"]


def test_a_further_leaf_is_found() -> None:
    """A placeholder that is added for a part of a value."""
    gm = copy_of(joint(nn.Linear(3, 3), two(2, 3)).graph_module)
    value = JointGraphIndex(gm).plain_inputs[0]
    assert [*value.leaves] == ["a", "b"]
    with gm.graph.inserting_after(value.nodes[1]):
        new = gm.graph.placeholder("more")
    new.meta["desc"] = d.SubclassGetAttrAOTInput(d.PlainAOTInput(0), "c")
    assert [*value.leaves] == ["a", "b", "c"]
    assert value.nodes[2] is new


def test_a_saved_activation_goes_by_its_nodes_name() -> None:
    """It has no descriptor: under another name it is another."""
    graph = copy_of(partition(joint(Scaled(), torch.randn(2, 3))).backward).graph
    index = JointGraphIndex(graph)
    saved = next(record for record in index.inputs.values() if record.kind is InputKind.SAVED)
    assert saved.name == saved.node.name
    saved.node._rename("another")
    with pytest.raises(StaleIndexError):
        _ = saved.name
    assert "another" in index.saved


def nested_entry(values: list[object], descs: list[object]) -> None:
    """Puts a list in a slot."""
    values[0] = [values[0]]


def undescribed_value(values: list[object], descs: list[object]) -> None:
    """Puts a value where the place of a gradient has no descriptor."""
    values[descs.index(None)] = values[0]


@pytest.mark.parametrize("breaks", [nested_entry, undescribed_value])
def test_an_output_list_that_breaks_a_rule_is_no_answer(
    index: JointGraphIndex, breaks: Callable[[list[object], list[object]], None]
) -> None:
    """Though it is as long as before, and its descriptors are the same."""
    grad = index.grads[W]
    values = entries(index.graph)
    breaks(values, [*descriptors(index)])
    index.graph.output_node().args = (values,)
    for ask in (lambda: grad.node, lambda: len(index.outputs), lambda: index.params["weight"].grad):
        with pytest.raises(StaleIndexError, match="finish the edit first"):
            ask()


def test_an_output_node_without_a_list_is_no_answer(index: JointGraphIndex) -> None:
    """As it may be in the middle of an edit."""
    grad = index.grads[W]
    index.graph.output_node().args = ()
    with pytest.raises(StaleIndexError, match="finish the edit first"):
        _ = grad.node


def test_equal_descriptors_are_looked_at_once(index: JointGraphIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then they are the index's own, and each question is answered in constant time again."""
    grad, weight = index.grads[W], index.params["weight"]
    index.graph.output_node().meta["desc"] = copy.deepcopy(descriptors(index))
    weight.node.meta["desc"] = copy.deepcopy(W)
    node, placeholder = grad.node, weight.node

    def no_look(_: object) -> str:
        raise AssertionError

    monkeypatch.setattr(Slots, "outputs_changed", no_look)
    monkeypatch.setattr(Slots, "inputs_changed", no_look)
    assert grad.node is node
    assert weight.node is placeholder


def test_what_is_absent_is_told_without_saying_why(index: JointGraphIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """``get`` looks for no close matches."""

    def explain(*_: object) -> UnknownNameError:
        raise AssertionError

    monkeypatch.setattr("jointgraph.index.unknown", explain)
    assert index.grads.get(FROZEN) is None
    assert index.params.get("wait", 3) == 3


@pytest.mark.parametrize("nested", [False, True])
def test_a_reading_block_answers_as_outside(index: JointGraphIndex, nested: bool) -> None:
    """It only leaves out the look whether the graph changed, and may stand in another."""
    outside = dict(index.grads)
    with index.reading():
        if nested:
            with index.reading():
                pass
        assert dict(index.grads) == outside


def test_a_reading_block_begins_with_the_graph_as_it_is(index: JointGraphIndex) -> None:
    """An edit before the block is seen in it."""
    index.params["frozen"].node.meta["desc"] = d.ParamAOTInput("scale")
    with index.reading():
        assert "scale" in index.params


def in_place(index: JointGraphIndex) -> None:
    """Renames a parameter."""
    index.params["frozen"].node.meta["desc"] = d.ParamAOTInput("scale")


def half_done(index: JointGraphIndex) -> None:
    """Adds an output without a descriptor."""
    index.graph.output_node().args = ([*entries(index.graph), None],)


@pytest.mark.parametrize("edit", [in_place, half_done])
def test_an_edit_in_a_reading_block_is_reported(
    index: JointGraphIndex, edit: Callable[[JointGraphIndex], None]
) -> None:
    """On leaving the block, since answers in it may have been wrong."""
    with pytest.raises(StaleIndexError), index.reading():
        edit(index)
