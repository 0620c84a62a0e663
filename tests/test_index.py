"""`JointGraphIndex`: its views, what they cost, and how it follows its graph."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import pytest
import torch
from torch import fx
from torch._functorch._aot_autograd import descriptors as d

from jointgraph import (
    GraphKind,
    Input,
    JointGraphError,
    JointGraphIndex,
    MalformedGraphError,
    Output,
    StaleIndexError,
)
from tests.capture import partition
from tests.differential import check_same_answers
from tests.graphs import entries, erase_input, interior, placeholder, reverse_slots, set_outputs, snapshot
from tests.models import Sample

VIEWS: dict[str, Callable[[JointGraphIndex], Mapping[Any, Any]]] = {
    "inputs": lambda index: index.inputs,
    "outputs": lambda index: index.outputs,
    "params": lambda index: index.params,
    "buffers": lambda index: index.buffers,
    "plain_inputs": lambda index: index.plain_inputs,
    "plain_outputs": lambda index: index.plain_outputs,
    "tangents": lambda index: index.tangents,
    "grads": lambda index: index.grads,
    "mutations": lambda index: index.mutations,
    "saved": lambda index: index.saved,
    "input_grads": lambda index: index.input_grads,
    "output_tangents": lambda index: index.output_tangents,
}
every_view = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)


# What the views hold.


def test_inputs_are_all_placeholders_in_order(batch_norm: Sample) -> None:
    """``inputs`` has every placeholder by its descriptor, in placeholder order."""
    placeholders = batch_norm.graph.find_nodes(op="placeholder")
    inputs = batch_norm.index().inputs
    assert list(inputs) == [node.meta["desc"] for node in placeholders]
    assert [record.node for record in inputs.values()] == placeholders


def test_outputs_are_all_described_entries_in_order(grad_inputs: Sample) -> None:
    """``outputs`` has every output entry that has a descriptor, in output order; an entry without one is left out."""
    outputs = grad_inputs.index().outputs
    weight, x, z = d.ParamAOTInput("weight"), d.PlainAOTInput(0), d.PlainAOTInput(2)
    assert list(outputs) == [d.PlainAOTOutput(0), *map(d.GradAOTOutput, (weight, x, z))]
    add, mm_1, mm_2, nothing, also_nothing = entries(grad_inputs.graph)
    assert nothing is None
    assert [record.value for record in outputs.values()] == [add, mm_1, mm_2, also_nothing]


def test_params_are_keyed_by_name_in_graph_order(mlp: Sample) -> None:
    """``params`` has the parameters under their fully qualified names, in the order of the graph."""
    params = mlp.index().params
    assert list(params) == ["first.weight", "first.bias", "second.weight", "second.bias"]
    assert [param.node.name for param in params.values()] == ["primals_1", "primals_2", "primals_3", "primals_4"]


def test_buffers_are_keyed_by_name(batch_norm: Sample) -> None:
    """``buffers`` has the buffers, and no parameter, under their fully qualified names."""
    index = batch_norm.index()
    assert list(index.buffers) == ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]
    assert list(index.params) == ["conv.weight", "norm.weight", "norm.bias"]


def test_plain_inputs_are_keyed_by_argument_number(batch_norm: Sample) -> None:
    """``plain_inputs`` counts the user's arguments alone, whatever the placeholder's position."""
    (number,) = batch_norm.index().plain_inputs
    record = batch_norm.index().plain_inputs[0]
    assert (number, record.position, record.node.name) == (0, 6, "primals_7")


def test_integers_none_and_keywords_are_plain_inputs(arguments: Sample) -> None:
    """An integer, ``None`` and keyword arguments are numbered on, keywords last; those without a tensor show none."""
    plain = arguments.index().plain_inputs
    assert list(plain) == [0, 1, 2, 3, 4]
    assert [tuple(one.val.shape) if one.val is not None else None for one in plain.values()] == [
        (2, 3),
        None,
        None,
        (3,),
        None,
    ]


def test_plain_outputs_are_keyed_by_result_number(batch_norm: Sample) -> None:
    """``plain_outputs`` counts the user's results alone, though mutations come before them."""
    (number,) = batch_norm.index().plain_outputs
    record = batch_norm.index().plain_outputs[0]
    assert (number, record.position) == (0, 3)
    assert record.node is entries(batch_norm.graph)[3]


def test_none_and_numbers_are_plain_outputs(many_outputs: Sample) -> None:
    """A result that is ``None`` or a number is in ``plain_outputs`` with just that value, and no node."""
    plain = many_outputs.index().plain_outputs
    assert list(plain) == list(range(7))
    assert [(plain[i].value, plain[i].node) for i in (3, 4)] == [(None, None), (7, None)]


def test_tangents_are_keyed_by_the_output_they_belong_to(many_outputs: Sample) -> None:
    """``tangents`` has each tangent under its output's descriptor, and none for outputs without gradient."""
    tangents = many_outputs.index().tangents
    assert list(tangents) == [d.PlainAOTOutput(0), d.PlainAOTOutput(1), d.PlainAOTOutput(2)]
    assert [tangent.node.name for tangent in tangents.values()] == ["tangents_1", "tangents_2", "tangents_3"]


def test_grads_are_keyed_by_the_input_they_belong_to(grad_inputs: Sample) -> None:
    """``grads`` has each gradient that the graph computes under its input's descriptor, and no ``None``."""
    grads = grad_inputs.index().grads
    assert list(grads) == [d.ParamAOTInput("weight"), d.PlainAOTInput(0)]
    assert [grad.node for grad in grads.values()] == entries(grad_inputs.graph)[1:3]


def test_mutations_are_keyed_by_the_input_that_is_mutated(batch_norm: Sample) -> None:
    """``mutations`` has the new value of every mutated buffer under its descriptor."""
    index = batch_norm.index()
    assert list(index.mutations) == [d.BufferAOTInput(name) for name in index.buffers]
    assert [new.node for new in index.mutations.values()] == entries(batch_norm.graph)[:3]


def test_input_grads_pair_every_forward_input(grad_inputs: Sample) -> None:
    """``input_grads`` has every input but tangents, with its gradient, or ``None`` in both cases of no gradient."""
    index = grad_inputs.index()
    assert list(index.input_grads) == [d.ParamAOTInput("weight"), *map(d.PlainAOTInput, range(3))]
    found = {record.name: grad and grad.node for record, grad in index.input_grads.values()}
    _, of_weight, of_x, _, _ = entries(grad_inputs.graph)
    assert list(found.values()) == [of_weight, of_x, None, None]


def test_output_tangents_pair_every_forward_output(many_outputs: Sample) -> None:
    """``output_tangents`` has every output but gradients, with its tangent or ``None``."""
    pairs = many_outputs.index().output_tangents
    assert list(pairs) == [d.PlainAOTOutput(idx) for idx in range(7)]
    names = [tangent and tangent.node.name for _, tangent in pairs.values()]
    assert names == ["tangents_1", "tangents_2", "tangents_3", None, None, None, None]


def test_saved_names_what_both_halves_of_a_partition_carry(mlp: Sample) -> None:
    """``saved`` has the same names in the forward graph, as outputs, and in the backward graph, as inputs."""
    halves = partition(mlp.joint)
    forward, backward = map(JointGraphIndex, halves)
    assert forward.saved
    assert set(forward.saved) == set(backward.saved)
    assert all(isinstance(record, Output) for record in forward.saved.values())
    assert all(isinstance(record, Input) for record in backward.saved.values())
    assert all(record.node is not None and record.node.name == name for name, record in backward.saved.items())


def test_saved_is_empty_before_partitioning(mlp: Sample) -> None:
    """A joint graph saves nothing."""
    assert dict(mlp.index().saved) == {}


@every_view
def test_views_are_read_only(batch_norm: Sample, view: Callable[[JointGraphIndex], Any]) -> None:
    """No view can be assigned to or deleted from."""
    mapping = view(batch_norm.index())
    key = next(iter(mapping), "saved")
    with pytest.raises(TypeError):
        mapping[key] = None
    with pytest.raises(TypeError):
        del mapping[key]


@every_view
def test_a_view_behaves_as_one_mapping(many_outputs: Sample, view: Callable[[JointGraphIndex], Any]) -> None:
    """Length, iteration, items, values, look-ups and ``in`` of a view agree."""
    mapping = view(many_outputs.index())
    keys = list(mapping)
    assert len(mapping) == len(keys) == len(set(keys))
    assert list(mapping.items()) == list(zip(keys, mapping.values()))
    assert [mapping[key] for key in keys] == list(mapping.values())
    assert all(key in mapping for key in keys)
    assert "no such key" not in mapping


def test_all_views_give_out_the_same_records(batch_norm: Sample) -> None:
    """There is one record to a value, whichever way it was asked for."""
    index = batch_norm.index()
    desc = d.BufferAOTInput("norm.running_mean")
    record = index.buffers["norm.running_mean"]
    assert record is index.inputs[desc] is index[desc] is index.input_grads[desc].input
    assert index.mutations[desc] is index.outputs[d.InputMutationAOTOutput(desc)] is record.mutation


def test_a_descriptor_finds_its_record(mlp: Sample) -> None:
    """``index[desc]`` and ``desc in index`` take descriptors of inputs and of outputs, and go by their value."""
    index = mlp.index()
    assert index[d.ParamAOTInput("first.bias")] is index.params["first.bias"]
    assert index[d.PlainAOTOutput(0)] is index.plain_outputs[0]
    assert d.ParamAOTInput("first.bias") in index
    assert d.PlainAOTOutput(0) in index
    assert d.ParamAOTInput("third.bias") not in index
    assert d.PlainAOTOutput(1) not in index


# Roles.


def test_a_placeholder_has_the_role_of_its_input(mlp: Sample) -> None:
    """``roles`` of a placeholder that is no output is its one input."""
    index = mlp.index()
    assert index.roles(placeholder(mlp.graph, "primals_3")) == (index.params["second.weight"],)


def test_an_interior_node_has_no_role(mlp: Sample) -> None:
    """``roles`` of a node that fills no slot is empty."""
    index, nodes = mlp.index(), interior(mlp.graph)
    assert nodes
    assert {index.roles(node) for node in nodes} == {()}


def test_a_node_returned_twice_has_both_roles(many_outputs: Sample) -> None:
    """``roles`` of a tensor that is returned twice has both outputs, in slot order, each with its own tangent."""
    index = many_outputs.index()
    first, _, third, *_ = index.plain_outputs.values()
    assert first.node is not None
    assert index.roles(first.node) == (first, third)
    assert (first.tangent, third.tangent) == (index.tangents[first.desc], index.tangents[third.desc])
    assert first.tangent is not third.tangent


def test_a_placeholder_that_is_returned_has_both_roles(many_outputs: Sample) -> None:
    """``roles`` of an argument that is returned as it came has the input first, then the output."""
    index = many_outputs.index()
    record, output = index.plain_inputs[0], index.plain_outputs[5]
    assert output.node is record.node
    assert index.roles(record.node) == (record, output)


def test_roles_follow_a_swapped_output(mlp: Sample) -> None:
    """After an output entry is swapped, its new node has the role, and the old one has lost it."""
    graph = mlp.copy().graph
    index = JointGraphIndex(graph)
    output = index.plain_outputs[0]
    old = output.node
    assert old is not None
    assert index.roles(old) == (output,)
    with graph.inserting_after(old):
        new = graph.call_function(torch.neg, (old,))
    graph.output_node().args = ([new, *entries(graph)[1:]],)
    assert index.roles(new) == (output,)
    assert index.roles(old) == ()


def test_roles_follow_an_added_output(mlp: Sample) -> None:
    """After an interior node is returned as one more result, it has that role."""
    graph = mlp.copy().graph
    index = JointGraphIndex(graph)
    node = interior(graph)[0]
    assert index.roles(node) == ()
    set_outputs(graph, [*entries(graph), node], [*graph.output_node().meta["desc"], d.PlainAOTOutput(1)])
    assert index.roles(node) == (index.plain_outputs[1],)


def test_roles_refuse_a_node_of_another_graph(mlp: Sample) -> None:
    """``roles`` of a node of a copy raises, though that node has the name and the descriptor of one here."""
    stranger = placeholder(mlp.copy().graph, "primals_1")
    with pytest.raises(JointGraphError, match=r"primals_1 is a node of another graph"):
        mlp.index().roles(stranger)


# Kind, graph, repr.


def test_kind_tells_the_four_graphs_apart(mlp: Sample, inference: Sample) -> None:
    """A capture is ``JOINT``, its halves ``FORWARD`` and ``BACKWARD``, one without gradients ``INFERENCE``."""
    forward, backward = partition(mlp.joint)
    graphs: list[fx.Graph | fx.GraphModule] = [mlp.graph, forward, backward, inference.graph]
    assert [JointGraphIndex(graph).kind for graph in graphs] == [
        GraphKind.JOINT,
        GraphKind.FORWARD,
        GraphKind.BACKWARD,
        GraphKind.INFERENCE,
    ]


def test_an_index_takes_graph_module_and_capture(mlp: Sample) -> None:
    """A graph, its graph module and what torch's export returns are all indexed, by the same ``graph``."""
    holders: list[Any] = [mlp.graph, mlp.joint.graph_module, mlp.joint]
    for holder in holders:
        index = JointGraphIndex(holder)
        assert index.graph is mlp.graph
        assert list(index.params) == ["first.weight", "first.bias", "second.weight", "second.bias"]


def test_repr_counts_what_there_is(batch_norm: Sample) -> None:
    """The repr says the kind and counts every sort of value that there is."""
    assert repr(batch_norm.index()) == (
        "<JointGraphIndex joint: 3 params (3 with grad), 3 buffers, 1 plain input, 1 plain output, 1 tangent, "
        "3 mutations>"
    )


def test_repr_counts_computed_gradients(three_answers: Sample) -> None:
    """The repr counts a parameter as "with grad" only where a gradient came."""
    assert "4 params (1 with grad)" in repr(three_answers.index())


def test_repr_names_the_subclass(inference: Sample) -> None:
    """The repr of an index of a class derived from it has that class's name."""

    class MyIndex(JointGraphIndex):
        pass

    assert repr(MyIndex(inference.joint)).startswith("<MyIndex inference: ")


# What it costs.


class Untouchable(fx.Node):
    """A node that can't be read."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise AssertionError(f"{name} of an interior node was read")


def test_no_view_reads_the_interior(batch_norm: Sample) -> None:
    """Building an index, and going through each of its views and links, reads no attribute of any interior node."""
    graph = batch_norm.copy().graph
    nodes = interior(graph)
    for node in nodes:
        object.__setattr__(node, "__class__", Untouchable)
    with pytest.raises(AssertionError, match="was read"):
        _ = nodes[0].op

    index = JointGraphIndex(graph)
    for view in VIEWS.values():
        assert len([*view(index).items()]) == len(view(index))
    linked = [(record.grad, record.mutation, record.tangent_of, record.aliases) for record in index.inputs.values()]
    assert len(linked) == 8
    index.refresh()
    assert "3 params" in repr(index)
    assert index.kind is GraphKind.JOINT
    assert index.roles(index.params["conv.weight"].node) == (index.params["conv.weight"],)


def test_nothing_goes_through_the_list_of_nodes(batch_norm: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """Building an index and asking it everything never asks for ``graph.nodes``."""
    graph = batch_norm.copy().graph

    def refuse(graph: fx.Graph) -> NoReturn:
        raise AssertionError("graph.nodes was asked for")

    monkeypatch.setattr(fx.Graph, "nodes", property(refuse))
    index = JointGraphIndex(graph)
    for view in VIEWS.values():
        list(view(index).items())
    assert len(index.params) == 3


class Recording(JointGraphIndex):
    """Notes whose records are made: each descriptor is asked about then."""

    asked: list[d.AOTInput | d.AOTOutput]

    def keeps_input(self, desc: d.AOTInput) -> bool:
        self.asked.append(desc)
        return True

    def keeps_output(self, desc: d.AOTOutput) -> bool:
        self.asked.append(desc)
        return True


@pytest.fixture
def recording(batch_norm: Sample) -> Recording:
    """An index that has been asked nothing yet."""
    Recording.asked = []
    return Recording(batch_norm.joint)


def test_building_makes_no_record(recording: Recording) -> None:
    """An index that was asked nothing, or only its kind, has made no record."""
    assert recording.kind is GraphKind.JOINT
    assert recording.asked == []


@pytest.mark.parametrize(
    ("view", "classes"),
    [
        ("params", {d.ParamAOTInput}),
        ("buffers", {d.BufferAOTInput}),
        ("plain_inputs", {d.PlainAOTInput}),
        ("tangents", {d.TangentAOTInput}),
        ("plain_outputs", {d.PlainAOTOutput}),
        ("grads", {d.GradAOTOutput}),
        ("mutations", {d.InputMutationAOTOutput}),
    ],
)
def test_a_view_makes_its_own_records_only(recording: Recording, view: str, classes: set[type]) -> None:
    """Going through one view makes the records in it and no others."""
    records = list(VIEWS[view](recording).values())
    assert {type(desc) for desc in recording.asked} == classes
    assert len(recording.asked) == len(records)


def test_a_gradient_makes_no_other_outputs_record(recording: Recording) -> None:
    """Asking a parameter for its gradient makes records of gradients only."""
    param = recording.params["conv.weight"]
    recording.asked.clear()
    assert param.grad is not None
    assert {type(desc) for desc in recording.asked} == {d.GradAOTOutput}


def test_what_was_asked_is_kept(recording: Recording) -> None:
    """Asking again makes nothing again."""
    first = [dict(view(recording)) for view in VIEWS.values()]
    recording.asked.clear()
    assert [dict(view(recording)) for view in VIEWS.values()] == first
    assert recording.asked == []


# Any order of slots.


def test_any_order_of_slots_pairs_alike(any_sample: Sample) -> None:
    """With placeholders and outputs in reverse order, every value has the same node and the same partner as before."""
    graph = any_sample.copy().graph
    before = JointGraphIndex(graph)
    grads = {desc: (pair.input.node, pair.grad and pair.grad.node) for desc, pair in before.input_grads.items()}
    tangents = {desc: pair.tangent and pair.tangent.node for desc, pair in before.output_tangents.items()}
    mutations = {desc: new.node for desc, new in before.mutations.items()}
    reverse_slots(graph)

    after = JointGraphIndex(graph)
    assert {desc: (one.input.node, one.grad and one.grad.node) for desc, one in after.input_grads.items()} == grads
    assert {desc: one.tangent and one.tangent.node for desc, one in after.output_tangents.items()} == tangents
    assert {desc: new.node for desc, new in after.mutations.items()} == mutations
    assert [*after.input_grads] == [*reversed(grads)]
    assert [*after.output_tangents] == [*reversed(tangents)]
    check_same_answers(graph)


# Following the graph.


def test_an_index_never_changes_its_graph(any_sample: Sample) -> None:
    """Asking everything leaves the code, the descriptors and the metadata as they were."""
    graph = any_sample.copy().graph
    before = snapshot(graph)
    index = JointGraphIndex(graph)
    for view in VIEWS.values():
        list(view(index).items())
    repr(index)
    index.refresh()
    assert snapshot(graph) == before


def test_a_new_node_behind_a_placeholder_changes_no_answer(mlp: Sample) -> None:
    """After all uses of a parameter are replaced by those of a new node, the parameter's record is as it was."""
    graph = mlp.copy().graph
    index = JointGraphIndex(graph)
    param = index.params["first.weight"]
    node = param.node
    with graph.inserting_after(node):
        doubled = graph.call_function(torch.mul, (node, 2))
    node.replace_all_uses_with(doubled, delete_user_cb=lambda user: user is not doubled)
    assert index.params["first.weight"] is param
    assert param.node is node
    assert index.roles(doubled) == ()


def test_a_record_shows_the_entry_that_is_there_now(mlp: Sample) -> None:
    """After a gradient's node is replaced in the output list, the records given out before have the new node."""
    graph = mlp.copy().graph
    index = JointGraphIndex(graph)
    param = index.params["first.weight"]
    assert param.grad is not None
    old = param.grad.node
    assert old is not None
    with graph.inserting_before(graph.output_node()):
        scaled = graph.call_function(torch.mul, (old, 0.5))
    graph.output_node().replace_input_with(old, scaled)
    assert param.grad.node is scaled
    assert index.grads[param.desc] is param.grad


def test_a_removed_placeholder_is_never_answered(mlp: Sample) -> None:
    """After a slot is removed, views are of the new graph, and the record of the removed value raises."""
    graph = mlp.copy().graph
    index = JointGraphIndex(graph)
    bias, weight = index.params["first.bias"], index.params["second.weight"]
    remove(graph, bias)
    assert list(index.params) == ["first.weight", "second.weight", "second.bias"]
    assert weight.position == 1
    with pytest.raises(StaleIndexError, match=r"first\.bias.*placeholders were added, removed or moved"):
        _ = bias.node


def remove(graph: fx.Graph, record: Input) -> None:
    """Take a parameter out of the graph, and its gradient."""
    assert record.grad is not None
    position = record.grad.position
    erase_input(graph, record.node)
    values, descs = entries(graph), graph.output_node().meta["desc"]
    del values[position], descs[position]
    set_outputs(graph, values, descs)


def test_refresh_reads_a_changed_graph_again(mlp: Sample) -> None:
    """``refresh`` finds a placeholder that was added, even in a ``reading`` block, which finds nothing by itself."""
    graph = mlp.copy().graph
    index = JointGraphIndex(graph)
    block = index.reading()
    block.__enter__()
    with graph.inserting_before(placeholder(graph, "tangents_1")):
        added = graph.placeholder("scale")
    added.meta["desc"] = d.PlainAOTInput(1)
    assert list(index.plain_inputs) == [0]
    index.refresh()
    assert list(index.plain_inputs) == [0, 1]
    assert index.plain_inputs[1].node is added
    with pytest.raises(StaleIndexError, match="the index was refreshed"):
        block.__exit__(None, None, None)


def test_refresh_refuses_a_broken_graph_and_keeps_its_answers(mlp: Sample) -> None:
    """``refresh`` of a graph that breaks a rule raises; once that is mended, the records answer as before."""
    graph = mlp.copy().graph
    index = JointGraphIndex(graph)
    params = dict(index.params)
    node = placeholder(graph, "primals_2")
    desc = node.meta.pop("desc")
    with pytest.raises(MalformedGraphError, match="placeholder primals_2"):
        index.refresh()
    node.meta["desc"] = desc
    assert dict(index.params) == params
    assert params["first.bias"].node is node


def test_a_question_on_a_broken_graph_says_what_is_wrong(mlp: Sample) -> None:
    """A view of a graph that was broken since raises, naming the fault, and does not answer from the old graph."""
    graph = mlp.copy().graph
    index = JointGraphIndex(graph)
    assert len(index.params) == 4
    del placeholder(graph, "primals_2").meta["desc"]
    with pytest.raises(StaleIndexError, match="placeholder primals_2"):
        list(index.params)


def test_an_output_added_without_descriptor_is_noticed(mlp: Sample) -> None:
    """After an entry is appended to the output list and none to its descriptors, views and records say so."""
    graph = mlp.copy().graph
    index = JointGraphIndex(graph)
    output = index.plain_outputs[0]
    values = entries(graph)
    graph.output_node().args = ([*values, values[0]],)
    for ask in (lambda: len(index.outputs), lambda: output.node):
        with pytest.raises(StaleIndexError, match=rf"{len(values) + 1} entries and {len(values)} descriptors"):
            ask()


def test_reading_says_if_the_graph_changed_meanwhile(mlp: Sample) -> None:
    """A ``reading`` block answers as usual, and raises on leaving if a slot was removed inside it."""
    graph = mlp.copy().graph
    index = JointGraphIndex(graph)
    with index.reading():
        assert list(index.params) == ["first.weight", "first.bias", "second.weight", "second.bias"]
    with pytest.raises(StaleIndexError, match="Inside a reading"), index.reading():
        remove(graph, index.params["first.bias"])
