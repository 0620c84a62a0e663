"""What jointgraph refuses, and what it says."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._functorch._aot_autograd import descriptors as d

from jointgraph import (
    Finding,
    FindingCode,
    JointGraphError,
    JointGraphIndex,
    MalformedGraphError,
    MissingDescriptorError,
    StaleIndexError,
    SubclassError,
    UnknownNameError,
)
from tests.capture import joint, torchs_own_warnings
from tests.cases.models import Fn, multiply, two
from tests.graphs import copy_of, entries, erase_input, placeholder, set_outputs, snapshot
from tests.models import MLP, Sample


def refusal(graph: Any) -> MalformedGraphError:
    """The error that an index of a graph is refused with."""
    with pytest.raises(MalformedGraphError) as caught:
        JointGraphIndex(graph)
    return caught.value


def only_fault(graph: Any) -> Finding:
    """The one fault that an index of a graph is refused for."""
    (fault,) = refusal(graph).findings
    return fault


# The tree.


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        (MalformedGraphError, (JointGraphError, AssertionError, KeyError)),
        (MissingDescriptorError, (MalformedGraphError, KeyError)),
        (UnknownNameError, (JointGraphError, KeyError)),
        (SubclassError, (JointGraphError, RuntimeError)),
        (StaleIndexError, (JointGraphError, RuntimeError)),
    ],
)
def test_each_error_is_a_kind_of_what_torch_raises(error: type, bases: tuple[type, ...]) -> None:
    """Each exception is a `JointGraphError`, and of the built-in class that code around torch's functions catches."""
    assert all(issubclass(error, base) for base in bases)


def test_messages_are_shown_as_they_are(mlp: Sample) -> None:
    """``str`` of a `KeyError` of ours is its message, not a quoted one."""
    with pytest.raises(KeyError) as caught:
        _ = mlp.index().params["none"]
    assert str(caught.value) == caught.value.args[0]


# Malformed graphs.


def test_a_traced_graph_has_no_descriptors() -> None:
    """A graph from ``symbolic_trace`` is refused: placeholder and output lack descriptors, and there is a way out."""
    error = refusal(fx.symbolic_trace(MLP()))
    assert isinstance(error, MissingDescriptorError)
    missing = [fault for fault in error.findings if fault.code is FindingCode.MISSING_DESCRIPTOR]
    assert [fault.where for fault in missing] == ["placeholder x", "output"]
    assert all("Index the graph as AOTAutograd made it" in fault.remedy for fault in missing)


def test_a_pickled_graph_has_lost_its_descriptors(mlp: Sample) -> None:
    """A joint graph that was pickled is refused, and the way out names pickling."""
    with torchs_own_warnings():
        pickled = pickle.loads(pickle.dumps(copy_of(mlp.joint.graph_module)))
    error = refusal(pickled)
    assert isinstance(error, MissingDescriptorError)
    assert "pickling" in str(error)


def test_one_placeholder_without_descriptor_is_named(mlp: Sample) -> None:
    """A placeholder that lost its descriptor is refused by its name, and no other placeholder is."""
    graph = mlp.copy().graph
    del placeholder(graph, "primals_3").meta["desc"]
    error = refusal(graph)
    assert isinstance(error, MissingDescriptorError)
    assert [fault.where for fault in error.findings if fault.code is FindingCode.MISSING_DESCRIPTOR] == [
        "placeholder primals_3"
    ]
    assert str(error).count("placeholder ") == 1


def test_a_node_returned_without_descriptor_is_named(mlp: Sample) -> None:
    """An output entry that holds a node under a ``None`` descriptor is refused by position and node."""
    graph = mlp.copy().graph
    graph.output_node().meta["desc"][2] = None
    assert isinstance(refusal(graph), MissingDescriptorError)
    assert only_fault(graph).where == f"output[2] ({entries(graph)[2]})"


def test_nothing_returned_without_descriptor_is_legal(mlp: Sample) -> None:
    """An output entry that is ``None`` under a ``None`` descriptor is no fault."""
    graph = mlp.copy().graph
    assert (entries(graph)[-1], graph.output_node().meta["desc"][-1]) == (None, None)
    assert len(JointGraphIndex(graph).outputs) == len(entries(graph)) - 1


@pytest.mark.parametrize("change", [-1, 1], ids=["fewer", "more"])
def test_counts_that_differ_are_shown(mlp: Sample, change: int) -> None:
    """An output list longer or shorter than its descriptors is refused with both counts."""
    graph = mlp.copy().graph
    descs = graph.output_node().meta["desc"]
    graph.output_node().meta["desc"] = descs[:-1] if change < 0 else [*descs, None]
    fault = only_fault(graph)
    assert fault.where == "output"
    assert f"{len(descs)} entries and {len(descs) + change} descriptors" in fault.rule


@pytest.mark.parametrize("nest", [list, tuple])
def test_a_nested_output_is_named(mlp: Sample, nest: Callable[[Any], Any]) -> None:
    """An output entry that is itself a list is refused by position, with the advice to flatten it."""
    graph = mlp.copy().graph
    values = entries(graph)
    values[1] = nest([values[1]])
    set_outputs(graph, values, graph.output_node().meta["desc"])
    fault = only_fault(graph)
    assert fault.where.startswith("output[1] (")
    assert "nested" in fault.rule
    assert "flat" in fault.remedy


def test_outputs_that_nest_as_make_fx_does_are_refused(mlp: Sample) -> None:
    """A graph that returns outputs and gradients as two lists, with a descriptor each, is refused and not mispaired."""
    graph = mlp.copy().graph
    values, descs = entries(graph), graph.output_node().meta["desc"]
    set_outputs(graph, [values[:1], values[1:]], descs[:2])
    assert [fault.where.partition(" ")[0] for fault in refusal(graph).findings] == ["output[0]", "output[1]"]


def test_one_descriptor_on_two_placeholders_names_both(mlp: Sample) -> None:
    """Two placeholders with equal descriptors are refused: the second is at fault, and the first is named."""
    graph = mlp.copy().graph
    twin = placeholder(graph, "primals_5")
    twin.meta["desc"] = d.ParamAOTInput("second.bias")
    fault = only_fault(graph)
    assert fault.where == "placeholder primals_5"
    assert "placeholder primals_4" in fault.rule


def test_one_descriptor_on_two_outputs_names_both(mlp: Sample) -> None:
    """Two output entries with equal descriptors are refused: the second is at fault, and the first is named."""
    graph = mlp.copy().graph
    values, descs = entries(graph), graph.output_node().meta["desc"]
    set_outputs(graph, [*values, values[0]], [*descs, d.PlainAOTOutput(0)])
    fault = only_fault(graph)
    assert fault.where == f"output[{len(values)}] ({values[0]})"
    assert f"output[0] ({values[0]})" in fault.rule


def test_one_gradient_twice_names_both(mlp: Sample) -> None:
    """Two gradients of one parameter are refused."""
    graph = mlp.copy().graph
    values, descs = entries(graph), graph.output_node().meta["desc"]
    set_outputs(graph, [*values, values[1]], [*descs, d.GradAOTOutput(d.ParamAOTInput("first.weight"))])
    fault = only_fault(graph)
    assert fault.where == f"output[{len(values)}] ({values[1]})"
    assert f"output[1] ({values[1]})" in fault.rule


def test_a_gradient_of_an_erased_input_is_named(mlp: Sample) -> None:
    """A gradient whose input was erased is refused by its slot and its input, with both ways out."""
    graph = mlp.copy().graph
    erase_input(graph, placeholder(graph, "primals_2"))
    fault = only_fault(graph)
    assert fault.where == f"output[2] ({entries(graph)[2]})"
    assert "gradient of ParamAOTInput(target='first.bias')" in fault.rule
    assert fault.remedy == "Remove the gradient, or put the input back."


def test_a_tangent_of_a_removed_output_is_named(many_outputs: Sample) -> None:
    """A tangent whose output was removed is refused by its placeholder and its output."""
    graph = many_outputs.copy().graph
    values, descs = entries(graph), graph.output_node().meta["desc"]
    set_outputs(graph, [values[0], *values[2:]], [descs[0], *descs[2:]])
    fault = only_fault(graph)
    assert fault.where == "placeholder tangents_2"
    assert "tangent of PlainAOTOutput(idx=1)" in fault.rule


def test_a_descriptor_that_is_none_is_refused(mlp: Sample) -> None:
    """What stands in a descriptor's place and is none of torch's is refused by placeholder or slot."""
    graph = mlp.copy().graph
    placeholder(graph, "primals_1").meta["desc"] = "first.weight"
    graph.output_node().meta["desc"][0] = d.PlainAOTInput(0)
    error = refusal(graph)
    first, second, *_ = [fault for fault in error.findings if "which is no" in fault.rule]
    assert (first.where, second.where) == ("placeholder primals_1", f"output[0] ({entries(graph)[0]})")


def damaged(graph: fx.Graph) -> None:
    """Break five rules at once."""
    del placeholder(graph, "primals_1").meta["desc"]
    placeholder(graph, "primals_3").meta["desc"] = d.ParamAOTInput("second.bias")
    values, descs = entries(graph), list(graph.output_node().meta["desc"])
    descs[2] = None
    values[0] = [values[0]]
    set_outputs(graph, [*values, values[4]], [*descs, descs[4]])


def test_all_faults_are_in_one_message(mlp: Sample) -> None:
    """A graph with faults of several sorts is refused once, with each of them in the message and in ``faults``."""
    graph = mlp.copy().graph
    damaged(graph)
    error = refusal(graph)
    assert isinstance(error, MissingDescriptorError)
    rules = {
        "placeholder primals_1": "missing",
        "placeholder primals_4": "same descriptor",
        "output[0]": "nested",
        "output[2]": "no descriptor",
        f"output[{len(entries(graph)) - 1}]": "same descriptor",
    }
    for where, rule in rules.items():
        assert any(fault.where.startswith(where) and rule in fault.rule for fault in error.findings), (
            where,
            str(error),
        )
    for fault in error.findings:
        assert f"{fault.where}: {fault.rule}" in str(error)
        assert fault.remedy in str(error)
    assert f"({len(error.findings)} faults)" in str(error)


def without_all_descriptors(graph: fx.Graph) -> None:
    for node in [*graph.find_nodes(op="placeholder"), graph.output_node()]:
        del node.meta["desc"]


def with_counts_that_differ(graph: fx.Graph) -> None:
    graph.output_node().meta["desc"].append(None)


def with_an_erased_input(graph: fx.Graph) -> None:
    erase_input(graph, placeholder(graph, "primals_2"))


def without_output(graph: fx.Graph) -> None:
    graph.erase_node(graph.output_node())


@pytest.mark.parametrize(
    "damage", [damaged, without_all_descriptors, with_counts_that_differ, with_an_erased_input, without_output]
)
def test_a_refused_graph_is_left_as_it_was(mlp: Sample, damage: Callable[[fx.Graph], None]) -> None:
    """Refusing a graph changes nothing in it: not its code, not its metadata, not its descriptors."""
    graph = mlp.copy().graph
    damage(graph)
    before = snapshot(graph)
    refusal(graph)
    assert snapshot(graph) == before


def test_a_graph_without_output_is_refused(mlp: Sample) -> None:
    """A graph whose output node was erased is refused."""
    graph = mlp.copy().graph
    without_output(graph)
    assert "0 output nodes" in only_fault(graph).rule


def test_a_graph_that_returns_no_list_is_refused(mlp: Sample) -> None:
    """A graph that returns a bare node is refused."""
    graph = mlp.copy().graph
    graph.output_node().args = (entries(graph)[0],)
    assert "must return a list" in refusal(graph).findings[0].rule


@pytest.mark.parametrize("argument", [MLP(), None, "graph", []], ids=lambda argument: type(argument).__name__)
def test_what_holds_no_graph_is_a_type_error(argument: Any) -> None:
    """An index of anything but a graph, a graph module or a capture is refused, naming what was given."""
    with pytest.raises(TypeError, match=rf"A joint graph comes as an fx\.Graph.*not {type(argument).__name__}"):
        JointGraphIndex(argument)


# Unknown names.


def test_a_misspelt_parameter_offers_close_matches(llama: Sample) -> None:
    """A parameter's name with a typo raises, with the right name first among those offered."""
    with pytest.raises(UnknownNameError, match=r"Did you mean 'layers\.0\.wq\.weight' or") as caught:
        _ = llama.index().params["layers.0.wq.wieght"]
    assert caught.value.key == "layers.0.wq.wieght"
    assert caught.value.close_matches[0] == "layers.0.wq.weight"


def test_a_name_that_looks_like_none_is_shown_some(mlp: Sample) -> None:
    """A name that is close to none is told some of those that there are."""
    with pytest.raises(UnknownNameError, match=r"There are 'first\.weight', 'first\.bias'") as caught:
        _ = mlp.index().params["???"]
    assert caught.value.close_matches == ()


def test_a_parameter_asked_for_as_a_buffer_is_sent_on(batch_norm: Sample) -> None:
    """A buffer's name asked of ``params`` is told where it is."""
    with pytest.raises(UnknownNameError, match=r"It is in buffers\."):
        _ = batch_norm.index().params["norm.running_mean"]


def test_a_missing_argument_is_told_what_there_is(mlp: Sample) -> None:
    """A number beyond the arguments raises, showing the numbers that there are."""
    with pytest.raises(UnknownNameError, match=r"1 is not in plain_inputs\. There is 0\."):
        _ = mlp.index().plain_inputs[1]


def test_a_missing_gradient_is_an_error_only_when_asked_for(three_answers: Sample) -> None:
    """A graph with missing gradients is indexed; asking ``grads`` for one of them raises."""
    index = three_answers.index()
    with pytest.raises(UnknownNameError):
        _ = index.grads[d.ParamAOTInput("unused")]


def test_an_unknown_descriptor_offers_close_matches(mlp: Sample) -> None:
    """A descriptor that the graph has no value of raises, and offers those that look like it."""
    with pytest.raises(UnknownNameError) as caught:
        _ = mlp.index()[d.ParamAOTInput("first.wieght")]
    assert caught.value.key == d.ParamAOTInput("first.wieght")
    assert caught.value.close_matches[0] == d.ParamAOTInput("first.weight")


def test_get_does_not_raise(mlp: Sample) -> None:
    """``get`` of a view answers ``None``, or the default, for what isn't there."""
    params = mlp.index().params
    assert params.get("third.weight") is None
    assert params.get("first.weight") is params["first.weight"]


# Several where one was asked for.


def test_a_subclass_has_no_single_node() -> None:
    """``node`` of a tensor subclass raises, naming its leaves."""
    weight = JointGraphIndex(joint(Fn(multiply, two(3)), torch.randn(2, 3))).params["w"]
    with pytest.raises(SubclassError, match=r"2 leaves \('a', 'b'\)"):
        _ = weight.node


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_index_is_not_copied(mlp: Sample, make: Callable[[object], object]) -> None:
    """Its records are of one graph's nodes; a copy of the graph needs an index of its own."""
    with pytest.raises(TypeError, match="belongs to its graph"):
        make(mlp.index())
