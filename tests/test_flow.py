"""What holds for the flow of every graph, and that an answer is never older than the graph."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import fx
from torch._functorch._aot_autograd import descriptors as d
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from jointgraph import JointGraphIndex, Phase, StaleIndexError
from tests.capture import compiled
from tests.cases.case import Case
from tests.flow_oracle import check_flow
from tests.graphs import entries, set_outputs, snapshot
from tests.models import Sample
from tests.test_cases import every_graph

aten = torch.ops.aten


@every_graph
def test_what_is_defined_by_search_holds_for_the_catalogue(case: Case, number: int) -> None:
    """Phases, boundary, sources, sinks, derived sets, chains and uses are as defined, and asking changes nothing."""
    graph = case.graphs[number]
    before = snapshot(graph)
    check_flow(JointGraphIndex(graph))
    assert snapshot(graph) == before


def test_what_is_defined_by_search_holds_for_the_samples(any_sample: Sample) -> None:
    """The same for common models."""
    check_flow(any_sample.index())


# Random graphs.


@st.composite
def graphs(draw: st.DrawFn) -> fx.Graph:
    """A small graph with descriptors and no metadata: dead nodes, writes, tuples and their parts among its nodes."""
    graph = fx.Graph()
    nodes: list[fx.Node] = []

    def take(desc: d.AOTInput) -> None:
        nodes.append(graph.placeholder(f"x{len(nodes)}"))
        nodes[-1].meta["desc"] = desc

    params = [d.ParamAOTInput(f"p{number}") for number in range(draw(st.integers(1, 3)))]
    results = [d.PlainAOTOutput(number) for number in range(draw(st.integers(1, 2)))]
    inputs = [*params, *map(d.TangentAOTInput, results), *draw(st.sampled_from([[], [d.BackwardTokenAOTInput(0)]]))]
    for desc in draw(st.permutations(inputs)):
        take(desc)
    one_of = st.integers(0, 30).map(lambda number: nodes[-1 - number % len(nodes)])
    for _ in range(draw(st.integers(0, 12))):
        operation = draw(st.sampled_from(OPERATIONS))
        nodes.append(graph.call_function(*operation(draw(one_of), draw(one_of))))
    descs: list[d.AOTOutput] = [*results, *map(d.GradAOTOutput, params)]
    graph.output([draw(one_of | one_of | one_of | st.just(None)) for _ in descs]).meta["desc"] = descs
    return graph


OPERATIONS: list[Callable[[Any, Any], tuple[Callable[..., Any], tuple[Any, ...]]]] = [
    lambda one, other: (aten.add.Tensor, (one, other)),
    lambda one, other: (aten.mul.Tensor, (one, other)),
    lambda one, _: (aten.sin.default, (one,)),
    lambda one, _: (aten.detach.default, (one,)),
    lambda one, other: (aten.copy_.default, (one, other)),
    lambda one, _: (aten.split.Tensor, (one, 1)),
    lambda one, _: (operator.getitem, (one, 0)),
    lambda one, other: (aten.cat.default, ([one, other, one],)),
    lambda _, __: (aten.ones.default, ([2],)),
]
random = settings(
    max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)


@given(graphs())
@random
def test_what_is_defined_by_search_holds_for_random_graphs(graph: fx.Graph) -> None:
    """Whatever their shape."""
    graph.lint()
    check_flow(JointGraphIndex(graph))


@given(graphs(), st.data())
@random
def test_after_edits_all_is_as_in_a_new_index(graph: fx.Graph, data: st.DataObject) -> None:
    """One index, asked before and after each of some edits by plain FX."""
    index = JointGraphIndex(graph)
    for _ in range(3):
        check_flow(index)
        nodes = [node for node in graph.nodes if node.op == "call_function"]
        if not nodes:
            return
        node = data.draw(st.sampled_from(nodes))
        edit = data.draw(st.sampled_from(EDITS))
        edit(node, data.draw(st.sampled_from([one for one in graph.nodes if one < node])))
        graph.lint()
    check_flow(index)


def erase(node: fx.Node, earlier: fx.Node) -> None:
    """Erase a node, and have its users read an earlier one."""
    node.replace_all_uses_with(earlier)
    node.graph.erase_node(node)


def insert(node: fx.Node, earlier: fx.Node) -> None:
    """Have a new node read two, and the second's other users read it."""
    with node.graph.inserting_after(node):
        new = node.graph.call_function(aten.add.Tensor, (node, earlier))
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)


def write(node: fx.Node, _: fx.Node) -> None:
    """Make a node write to what it reads, or not, by its target alone."""
    if len(node.args) == 2 and isinstance(node.args[1], fx.Node):
        node.target = aten.add.Tensor if node.target is aten.copy_.default else aten.copy_.default


EDITS: list[Callable[[fx.Node, fx.Node], None]] = [
    erase,
    insert,
    write,
    lambda node, earlier: node.update_arg(0, [earlier] if node.target is aten.cat.default else earlier),
    lambda node, earlier: node.replace_input_with(node.all_input_nodes[0], earlier) if node.all_input_nodes else None,
    lambda node, _: node.update_kwarg("alpha", 2) if node.target is aten.add.Tensor else None,
    lambda node, earlier: node.graph.output_node().replace_input_with(node, earlier),
]


# Never older than the graph.


@pytest.fixture
def index(mlp: Sample) -> JointGraphIndex:
    """An index of a graph of its own, which has been asked everything once."""
    index = JointGraphIndex(mlp.copy())
    check_flow(index)
    return index


def relu_of(index: JointGraphIndex) -> fx.Node:
    """The node between the layers."""
    node: fx.Node = index.graph.find_nodes(op="call_function", target=aten.relu.default)[0]
    return node


def test_a_changed_argument_is_seen(index: JointGraphIndex) -> None:
    """No hook of FX tells of it."""
    relu, x = relu_of(index), index.plain_inputs[0]
    relu.update_arg(0, x.node)
    assert index.flow.sources(relu) == (x,)


def test_a_changed_keyword_is_seen(index: JointGraphIndex) -> None:
    """Of a node without other arguments, too, whose ``args`` are ``()`` all along."""
    one, other = index.params["first.bias"], index.params["second.bias"]
    with index.graph.inserting_before(index.graph.output_node()):
        node = index.graph.call_function(aten.add.Tensor, (), {"self": one.node, "other": one.node})
    before = index.flow.sources(node)
    node.update_kwarg("other", other.node)
    assert (before, index.flow.sources(node)) == ((one,), (one, other))


def test_an_inserted_argument_is_seen(index: JointGraphIndex) -> None:
    """``insert_arg`` goes a way of its own in FX."""
    relu, x = relu_of(index), index.plain_inputs[0]
    before = index.flow.sources(relu)
    relu.insert_arg(1, index.params["second.bias"].node)
    assert {*index.flow.sources(relu)} == {*before, index.params["second.bias"]}
    assert x in before


def test_a_moved_node_is_in_its_new_place(index: JointGraphIndex) -> None:
    """Lists are in graph order."""
    first, *others = before = index.flow.free_nodes
    (reader,) = first.users
    reader.prepend(first)
    index.graph.lint()
    others.insert(others.index(reader), first)
    assert [*index.flow.free_nodes] == others != [*before]


def test_a_swapped_output_is_seen(index: JointGraphIndex) -> None:
    """The calling convention stays, the dataflow doesn't."""
    relu, output = relu_of(index), index.plain_outputs[0]
    assert output.node is not None
    index.graph.output_node().replace_input_with(output.node, relu)
    assert index.flow.phase(relu) is Phase.FORWARD
    assert index.flow.sinks(relu)[0] is output
    assert index.flow.only_feeding(output) == ()


def test_another_descriptor_is_seen(index: JointGraphIndex) -> None:
    """A gradient that becomes a result of the user's depends on a tangent all the same; a result that becomes none."""
    relu = relu_of(index)
    assert index.flow.phase(relu) is Phase.FORWARD
    values, descs = entries(index.graph), [*index.graph.output_node().meta["desc"]]
    descs[0] = d.GradAOTOutput(d.PlainAOTInput(0))
    set_outputs(index.graph, values, descs)
    for tangent in index.tangents.values():
        tangent.node.meta["desc"] = d.TangentAOTInput(d.PlainAOTOutput(9))
    assert index.flow.phase(relu) is Phase.FREE
    assert index.flow.forward_nodes == ()


def test_a_held_boundary_stays_as_it_was(index: JointGraphIndex) -> None:
    """It is a value; the next one is of the graph as it is then."""
    held = index.flow.boundary
    before = held.crossings
    relu = relu_of(index)
    for user in [*relu.users]:
        user.replace_input_with(relu, relu.all_input_nodes[0])
    assert held.crossings == before
    assert relu not in [crossing.node for crossing in index.flow.boundary]


# Reading.


def test_reading_looks_once(index: JointGraphIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside, the nodes are gone through for the first answer only; outside, for each."""
    looks: list[None] = []
    interior = index.flow._interior
    look = interior._look

    def counted() -> Any:
        looks.append(None)
        return look()

    monkeypatch.setattr(interior, "_look", counted)
    relu = relu_of(index)
    with index.reading():
        for _ in range(5):
            index.flow.phase(relu)
            index.flow.twin_of(relu)
        assert len(looks) == 1
    assert len(looks) == 2
    index.flow.phase(relu)
    index.flow.phase(relu)
    assert len(looks) == 4


def test_a_change_of_the_interior_ends_reading_with_an_error(index: JointGraphIndex) -> None:
    """If something was asked about it: what was answered after the change may be wrong."""

    def change_while_reading() -> None:
        with index.reading():
            before = index.flow.sources(relu)
            relu.update_arg(0, index.plain_inputs[0].node)
            assert index.flow.sources(relu) == before

    relu = relu_of(index)
    with pytest.raises(StaleIndexError, match="block nodes were added, removed, moved or given other arguments: what"):
        change_while_reading()
    assert index.flow.sources(relu) == (index.plain_inputs[0],)


def test_a_node_added_while_reading_has_no_answer_there(index: JointGraphIndex) -> None:
    """The block was told that nothing changes."""

    def add_while_reading() -> None:
        with index.reading():
            index.flow.phase(relu)
            with index.graph.inserting_after(relu):
                new = index.graph.call_function(aten.neg.default, (relu,))
            index.flow.phase(new)

    relu = relu_of(index)
    with pytest.raises(StaleIndexError, match="neg_default was added inside a reading"):
        add_while_reading()
    (new,) = index.graph.find_nodes(op="call_function", target=aten.neg.default)
    assert index.flow.phase(new) is Phase.FREE


def test_an_interior_that_nobody_asked_about_may_change(index: JointGraphIndex) -> None:
    """Records and views have nothing to do with it."""
    relu = relu_of(index)
    with index.reading():
        assert index.params["first.weight"].grad is not None
        relu.update_arg(0, index.plain_inputs[0].node)
    assert index.flow.sources(relu) == (index.plain_inputs[0],)


def test_an_error_inside_reading_comes_out(index: JointGraphIndex) -> None:
    """And the next answer is of the graph as it is."""

    def fail_while_reading() -> None:
        with index.reading():
            index.flow.phase(relu)
            relu.update_arg(0, index.plain_inputs[0].node)
            raise ZeroDivisionError

    relu = relu_of(index)
    with pytest.raises(ZeroDivisionError):
        fail_while_reading()
    assert index.flow.sources(relu) == (index.plain_inputs[0],)
    with index.reading():
        assert index.flow.sources(relu) == (index.plain_inputs[0],)


def test_the_repr_counts(index: JointGraphIndex) -> None:
    """The nodes of each phase."""
    flow = index.flow
    counts = len(flow.forward_nodes), len(flow.backward_nodes), len(flow.free_nodes)
    assert repr(flow) == "<Flow: {} forward, {} backward, {} free>".format(*counts)
    assert index.flow is flow


# Higher-order operators.


def checkpointed(x: torch.Tensor) -> object:
    """Has its middle computed again in backward."""
    return checkpoint(lambda y: y.sin().exp(), x, use_reentrant=False).cos()


def branching(x: torch.Tensor) -> object:
    """Takes one of two ways."""
    return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,)) * 2


def attention(x: torch.Tensor) -> object:
    """Flex attention, which has no gradient on a CPU."""
    heads = x.detach().view(1, 1, 4, -1)
    return flex_attention(heads, heads, heads, score_mod=lambda score, b, h, i, j: score + i - j)


@pytest.mark.parametrize("function", [checkpointed, branching, attention])
def test_higher_order_operators_are_single_nodes(function: Callable[[torch.Tensor], object]) -> None:
    """Their subgraphs are attributes of the module, and nothing breaks on either."""
    graphs = compiled(function, torch.randn(4, 16, requires_grad=True))
    for module in filter(None, (graphs.joint, graphs.inference, *(graphs.halves or ()))):
        check_flow(JointGraphIndex(module))


def test_what_a_branch_needs_in_backward_crosses() -> None:
    """The condition and the argument; not the subgraphs, which are there on both sides."""
    graph = compiled(branching, torch.randn(4, requires_grad=True)).joint
    assert graph is not None
    index = JointGraphIndex(graph)
    (condition,) = index.graph.find_nodes(op="call_function", target=aten.gt.Scalar)
    assert [crossing.node for crossing in index.flow.boundary] == [index.plain_inputs[0].node, condition]
    subgraphs = index.graph.find_nodes(op="get_attr")
    assert len(subgraphs) == 4
    assert {index.flow.phase(node) for node in subgraphs} == {Phase.FORWARD, Phase.FREE}
