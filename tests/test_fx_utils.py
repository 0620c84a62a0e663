"""`jointgraph.fx_utils`: torch's nine functions, held against torch's own."""

import inspect
import pickle
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from torch import fx
from torch._functorch._aot_autograd import descriptors as d
from torch._functorch._aot_autograd import fx_utils as torchs

from jointgraph import JointGraphIndex
from jointgraph import fx_utils as ours
from tests.capture import joint, partition, torchs_own_warnings
from tests.cases.models import Fn, multiply, two
from tests.differential import NAMES, check_same_answers
from tests.graphs import copy_of, entries, erase_input, placeholder, set_outputs
from tests.models import Sample

every_function = pytest.mark.parametrize("name", NAMES)


# Same answers.


@every_function
def test_each_function_answers_as_torchs(any_sample: Sample, name: str) -> None:
    """Each function gives torch's keys, in torch's order, and the same node objects."""
    expected, answer = getattr(torchs, name)(any_sample.graph), getattr(ours, name)(any_sample.graph)
    assert type(answer) is type(expected)
    assert list(answer) == list(expected)
    if isinstance(expected, dict):
        assert list(answer.values()) == list(expected.values())  # Nodes are equal only if they are one.


@every_function
def test_each_function_takes_an_index(any_sample: Sample, name: str) -> None:
    """Given an index, each function answers as for its graph."""
    expected, answer = getattr(torchs, name)(any_sample.graph), getattr(ours, name)(any_sample.index())
    assert type(answer) is type(expected)
    assert list(answer) == list(expected)
    if isinstance(expected, dict):
        assert list(answer.values()) == list(expected.values())


def test_all_nine_take_one_index_in_any_order(any_sample: Sample) -> None:
    """Answers don't depend on what the same index was asked before."""
    index = any_sample.index()
    forward = {name: getattr(ours, name)(index) for name in NAMES}
    backward = {name: getattr(ours, name)(index) for name in reversed(NAMES)}
    assert forward == backward == {name: getattr(torchs, name)(any_sample.graph) for name in NAMES}


@every_function
@pytest.mark.parametrize("index_first", [False, True], ids=["graph", "index"])
def test_the_caller_may_change_the_answer(batch_norm: Sample, name: str, index_first: bool) -> None:
    """What a function returned is the caller's own: emptying it doesn't change the next answer."""
    argument: Any = batch_norm.index() if index_first else batch_norm.graph
    function: Callable[[Any], Any] = getattr(ours, name)
    function(argument).clear()
    expected = getattr(torchs, name)(batch_norm.graph)
    assert expected
    assert function(argument) == expected


def test_answers_follow_a_swapped_output(mlp: Sample) -> None:
    """After a gradient's node is replaced, functions given the old index answer for the new graph."""
    graph = mlp.copy().graph
    index = JointGraphIndex(graph)
    check_same_answers(graph)
    assert ours.get_param_and_grad_nodes(index) == torchs.get_param_and_grad_nodes(graph)
    old = entries(graph)[1]
    with graph.inserting_after(old):
        new = graph.call_function(abs, (old,))
    graph.output_node().replace_input_with(old, new)
    pairs = ours.get_param_and_grad_nodes(index)
    assert pairs[d.ParamAOTInput("first.weight")][1] is new
    assert pairs == torchs.get_param_and_grad_nodes(graph)


def test_answers_follow_an_added_placeholder(mlp: Sample) -> None:
    """After an argument is added, functions given the old index answer for the new graph."""
    graph = mlp.copy().graph
    index = JointGraphIndex(graph)
    assert list(ours.get_plain_input_and_grad_nodes(index)) == [d.PlainAOTInput(0)]
    with graph.inserting_before(placeholder(graph, "tangents_1")):
        added = graph.placeholder("scale")
    added.meta["desc"] = d.PlainAOTInput(1)
    assert ours.get_plain_input_and_grad_nodes(index)[d.PlainAOTInput(1)] == (added, None)
    assert ours.get_all_input_and_grad_nodes(index) == torchs.get_all_input_and_grad_nodes(graph)


# Same exceptions.


def without_descriptors(graph: fx.Graph) -> None:
    """As after retracing."""
    for node in [*graph.find_nodes(op="placeholder"), graph.output_node()]:
        del node.meta["desc"]


def without_one_input_descriptor(graph: fx.Graph) -> None:
    del placeholder(graph, "primals_2").meta["desc"]


def without_output_descriptors(graph: fx.Graph) -> None:
    del graph.output_node().meta["desc"]


def with_one_gradient_twice(graph: fx.Graph) -> None:
    descs = graph.output_node().meta["desc"]
    descs[2] = descs[1]


def with_one_tangent_twice(graph: fx.Graph) -> None:
    node = placeholder(graph, "tangents_1")
    with graph.inserting_after(node):
        graph.placeholder("again").meta["desc"] = node.meta["desc"]


def with_a_gradient_of_an_erased_input(graph: fx.Graph) -> None:
    erase_input(graph, placeholder(graph, "primals_2"))


def with_a_tangent_of_an_erased_output(graph: fx.Graph) -> None:
    set_outputs(graph, entries(graph)[1:], graph.output_node().meta["desc"][1:])


MALFORMED = [
    without_descriptors,
    without_one_input_descriptor,
    without_output_descriptors,
    with_one_gradient_twice,
    with_one_tangent_twice,
    with_a_gradient_of_an_erased_input,
    with_a_tangent_of_an_erased_output,
]


@every_function
@pytest.mark.parametrize("damage", MALFORMED)
def test_where_torch_raises_so_do_we(mlp: Sample, name: str, damage: Callable[[fx.Graph], None]) -> None:
    """On a malformed graph each function raises a kind of what torch's raises there; where torch's doesn't, it may."""
    graph = mlp.copy().graph
    damage(graph)
    try:
        getattr(torchs, name)(graph)
    except (KeyError, AssertionError) as error:
        with pytest.raises(type(error)):
            getattr(ours, name)(graph)


def test_torch_raises_on_malformed_graphs_at_all(mlp: Sample) -> None:
    """At least one of torch's functions complains of each damage: the test above compares something."""
    for damage in MALFORMED:
        graph = mlp.copy().graph
        damage(graph)
        assert any(raised(getattr(torchs, name), graph) for name in NAMES), damage


def raised(function: Callable[[fx.Graph], object], graph: fx.Graph) -> type[Exception] | None:
    """What a function raises on a graph."""
    try:
        function(graph)
    except Exception as error:  # Any: that is the question.
        return type(error)
    return None


def test_a_pickled_graph_is_a_key_error(mlp: Sample) -> None:
    """A graph that lost its descriptors in pickling gives the ``KeyError`` that torch's functions give."""
    with torchs_own_warnings():
        graph = pickle.loads(pickle.dumps(copy_of(mlp.joint.graph_module))).graph
    assert raised(torchs.get_named_param_nodes, graph) is KeyError
    with pytest.raises(KeyError):
        ours.get_named_param_nodes(graph)


@every_function
def test_a_tensor_subclass_is_a_runtime_error(name: str) -> None:
    """On a graph with a tensor subclass each function raises or answers as torch's does."""
    graph = joint(Fn(multiply, two(3)), two(2, 3)).graph_module.graph
    expected = raised(getattr(torchs, name), graph)
    assert expected is RuntimeError
    with pytest.raises(RuntimeError, match="tensor subclass"):
        getattr(ours, name)(graph)


@pytest.mark.parametrize("half", [0, 1], ids=["forward", "backward"])
def test_partitioned_graphs_answer_as_torchs(mlp: Sample, half: int) -> None:
    """On the halves of a partitioned graph the functions answer, or raise, as torch's do."""
    check_same_answers(partition(mlp.joint)[half].graph)


# In torch's place.


def test_the_nine_names_are_torchs() -> None:
    """``__all__`` is every public function of torch's module."""
    functions = inspect.getmembers(torchs, inspect.isfunction)
    public = [name for name, function in functions if function.__module__ == torchs.__name__ and name[0] != "_"]
    assert sorted(ours.__all__) == sorted(public)
    assert len(public) == 9


@every_function
def test_arguments_have_torchs_names(name: str) -> None:
    """Each function's parameters have the names, the kinds and the defaults that torch's have."""
    expected, own = (inspect.signature(getattr(module, name)).parameters for module in (torchs, ours))
    assert [(p.name, p.kind, p.default) for p in own.values()] == [
        (p.name, p.kind, p.default) for p in expected.values()
    ]


A_PASS = '''
from torch._functorch._aot_autograd.fx_utils import (
    get_all_input_and_grad_nodes,
    get_all_output_and_tangent_nodes,
    get_named_buffer_nodes,
    get_param_and_grad_nodes,
    get_param_nodes,
    get_plain_output_and_tangent_nodes,
)
import torch._functorch._aot_autograd.fx_utils as fx_utils


def annotate(graph):
    """Number the nodes of each role, as a sharding pass does; return what each node was given."""
    given = {}
    for number, (desc, (node, grad)) in enumerate(get_all_input_and_grad_nodes(graph).items()):
        given[node] = f"{number} {desc.expr()}"
        if grad is not None:
            given[grad] = f"{number} gradient"
    for desc, (node, tangent) in get_all_output_and_tangent_nodes(g=graph).items():
        given.setdefault(node, desc.expr())
        if tangent is not None:
            given[tangent] += f" of {node}"
    for node, grad in get_param_and_grad_nodes(graph).values():
        given[node] += " with" if grad is not None else " without"
    for desc, (node, _) in get_plain_output_and_tangent_nodes(graph).items():
        given[node] += f" {desc.idx}"
    params, buffers = get_param_nodes(graph=graph), get_named_buffer_nodes(graph)
    inputs = fx_utils.get_plain_input_and_grad_nodes(graph)
    assert not set(params) & set(buffers.values())
    return given, params, buffers, inputs, fx_utils.get_named_param_nodes(graph), fx_utils.get_buffer_nodes(graph)
'''


def test_code_that_imports_torchs_module_runs_with_ours_in_its_place(
    any_sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that imports torch's module gives the same results with ``jointgraph.fx_utils`` in its place."""
    results = []
    for module in (torchs, ours):
        swap(module, monkeypatch)
        namespace: dict[str, Any] = {}
        exec(A_PASS, namespace)
        assert namespace["get_param_nodes"] is module.get_param_nodes
        assert namespace["fx_utils"] is module
        results.append(namespace["annotate"](any_sample.graph))
    expected, answer = results
    assert answer == expected
    assert expected[0]


def swap(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have imports of torch's module find another."""
    monkeypatch.setitem(sys.modules, torchs.__name__, module)
    monkeypatch.setattr(sys.modules["torch._functorch._aot_autograd"], "fx_utils", module)
