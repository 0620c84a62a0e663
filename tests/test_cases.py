"""Every case of the catalogue: the index says what its tables say, what holds for every graph, and what torch says."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._functorch._aot_autograd import fx_utils as torchs

from jointgraph import GradStatus, GraphKind, InputKind, JointGraphIndex, MalformedGraphError, OutputKind
from tests.capture import joint
from tests.cases import CATALOGUE
from tests.cases.case import A_NODE, INPUT_KINDS, OUTPUT_KINDS, Case, In, Out, Table, graph_of
from tests.differential import check_same_answers
from tests.invariants import check_invariants


def _graphs() -> Iterator[Any]:
    """Every graph of every case, by its number."""
    for family, cases in CATALOGUE.items():
        for case in cases:
            for number, table in enumerate(case.tables):
                name = f"{family}: {case.name}" + (f", {table.kind.value}" if len(case.tables) > 1 else "")
                yield pytest.param(case, number, id=name)


every_graph = pytest.mark.parametrize(("case", "number"), [*_graphs()])


@every_graph
def test_the_index_says_what_the_table_says(case: Case, number: int) -> None:
    """Kinds, names, leaves, links and values of all inputs and outputs are those of the hand-written table."""
    index, table = JointGraphIndex(case.graphs[number]), case.tables[number]
    assert index.kind is table.kind
    assert [*index.inputs] == [row.desc for row in table.inputs]
    assert [*index.outputs] == [row.desc for row in table.outputs]
    for row in table.inputs:
        _check_input(index, row)
    for output_row in table.outputs:
        _check_output(index, output_row)
    _check_views(index, table)


def _check_input(index: JointGraphIndex, row: In) -> None:
    record = index[row.desc]
    assert record.kind is INPUT_KINDS[type(row.desc)]
    assert tuple(record.leaves) == row.leaves
    assert record.grad_status is row.grad
    assert (record.grad is not None) == (row.grad is GradStatus.PRESENT)
    assert (record.mutation is not None) == row.mutated
    assert [alias.desc for alias in record.aliases] == [*row.aliases]
    assert record.is_used == row.used
    assert (record.tangent_of is not None) == (record.kind is InputKind.TANGENT and row.linked)
    if record.kind in {InputKind.PARAM, InputKind.BUFFER}:
        assert f"({record.name!r})" in row.desc.expr()
    elif record.kind is InputKind.SAVED:
        assert record.name == record.node.name
    else:
        assert record.name == row.desc.expr()


def _check_output(index: JointGraphIndex, row: Out) -> None:
    record = index[row.desc]
    assert record.kind is OUTPUT_KINDS[type(row.desc)]
    assert tuple(record.leaves) == row.leaves
    assert (record.tangent is not None) == row.tangent
    expected = row.linked and row.value is A_NODE
    assert (record.grad_of is not None) == (record.kind is OutputKind.GRAD and expected)
    assert (record.mutated_input is not None) == (record.kind is OutputKind.INPUT_MUTATION and expected)
    assert record.name == row.desc.expr()
    if row.value is A_NODE:
        assert all(isinstance(leaf.value, fx.Node) for leaf in record.leaves.values())
    else:
        assert record.node is None
        assert record.value == row.value
        assert type(record.value) is type(row.value)
    if row.same_node_as is not None:
        assert record.node is index[row.same_node_as].node
        assert record.node is not None
        assert {record, index[row.same_node_as]} <= {*index.roles(record.node)}


def _check_views(index: JointGraphIndex, table: Table) -> None:
    def keys(rows: Any, kind: InputKind | OutputKind, field: str) -> list[Any]:
        kinds: dict[Any, Any] = {**INPUT_KINDS, **OUTPUT_KINDS}
        return [getattr(row.desc, field) for row in rows if kinds[type(row.desc)] is kind]

    assert [*index.params] == keys(table.inputs, InputKind.PARAM, "target")
    assert [*index.buffers] == keys(table.inputs, InputKind.BUFFER, "target")
    assert [*index.plain_inputs] == keys(table.inputs, InputKind.PLAIN, "idx")
    assert [*index.tangents] == keys(table.inputs, InputKind.TANGENT, "output")
    assert [*index.plain_outputs] == keys(table.outputs, OutputKind.PLAIN, "idx")
    assert [*index.mutations] == keys(table.outputs, OutputKind.INPUT_MUTATION, "mutated_input")
    computed = [row for row in table.outputs if row.value is A_NODE]
    assert [*index.grads] == keys(computed, OutputKind.GRAD, "grad_of")
    if table.saved is not None:
        assert sorted(index.saved) == sorted(table.saved)


@every_graph
def test_what_holds_for_every_graph_holds(case: Case, number: int) -> None:
    """Links agree both ways, slots and records match one to one, views and roles follow, and asking changes nothing."""
    check_invariants(JointGraphIndex(case.graphs[number]))


@every_graph
def test_the_nine_functions_answer_as_torchs_do(case: Case, number: int) -> None:
    """Each of the nine functions gives torch's keys, order and nodes, or raises a kind of what torch raises."""
    check_same_answers(case.graphs[number])


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{family}: {case.name}")
        for family, cases in CATALOGUE.items()
        for case in cases
        if [table.kind for table in case.tables][-1] is GraphKind.BACKWARD
    ],
)
def test_both_halves_carry_the_same_names(case: Case) -> None:
    """What the forward graph saves is, by name, what the backward graph takes in beside tangents."""
    forward, backward = map(JointGraphIndex, case.graphs)
    assert {*forward.saved} == {*backward.saved}
    for name, saved in forward.saved.items():
        assert name in {node.name for node in saved.nodes}
        assert name in {node.name for node in backward.saved[name].nodes}


def test_an_index_takes_whatever_holds_the_graph() -> None:
    """A graph, its module and what torch's export returns give the same index."""
    captured = CATALOGUE["edges"][0].capture()
    modules = [captured, captured.graph_module, captured.graph_module.graph]  # type: ignore[union-attr]  # all three here
    first, *others = [JointGraphIndex(one) for one in modules]  # type: ignore[arg-type]  # likewise
    assert all([*index.inputs] == [*first.inputs] and index.graph is first.graph for index in others)
    assert first.graph is graph_of(captured)  # type: ignore[arg-type]  # likewise


class _TiedAndFrozen(nn.Module):
    """Doubles a frozen parameter, and one of two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(3))
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.b = self.a

    def forward(self) -> torch.Tensor:
        with torch.no_grad():
            self.frozen.mul_(2)
            self.a.mul_(2)
        return self.a.sin()


def test_a_graph_whose_tangents_torch_mixes_up_is_refused() -> None:
    """Where a tied and another parameter are mutated, torch calls a tangent that of an output that isn't there."""
    graph = graph_of(joint(_TiedAndFrozen()))
    with pytest.raises(KeyError):
        torchs.get_all_output_and_tangent_nodes(graph)
    with pytest.raises(MalformedGraphError, match="tangents_2"):
        JointGraphIndex(graph)
