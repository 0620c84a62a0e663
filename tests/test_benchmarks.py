"""The benchmarks run; what they measure is for a person to read, and asserted nowhere."""

import pytest

from jointgraph import JointGraphIndex
from tests.benchmarks import bench_edit, bench_flow, bench_index, measuring
from tests.models import Sample


def test_the_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """On tiny graphs the benchmark prints its table, the growth and the cost of importing."""
    bench_index.main(["--smoke"])
    _, head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == " ".join(bench_index.HEAD).split()
    starts = ["Llama, 1 layers", "same slots 400", "same slots 800"]
    assert all(" ".join(line.split()).startswith(start) for line, start in zip(lines, starts))
    assert all(float(number) > 0 for line in lines[:3] for number in line.split()[-7:])
    assert lines[3] == "growth from 400 to 800 interior nodes:"
    imports = [line.partition(" ms: ") for line in lines[5:]]
    assert [rest for _, _, rest in imports] == [f"{one}, on top of import torch" for one in bench_index.IMPORTS]
    assert all(float(milliseconds) > 0 for milliseconds, _, _ in imports)


def test_the_benchmark_of_the_flow_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """On tiny graphs it prints its table and the growth."""
    bench_flow.main(["--smoke"])
    _, head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == " ".join(bench_flow.HEAD).split()
    starts = ["Llama, 2 layers", "Llama, 1 layers", "stretched", "stretched"]
    assert all(" ".join(line.split()).startswith(start) for line, start in zip(lines, starts))
    assert all(float(number) > 0 for line in lines[:4] for number in line.split()[-9:])
    assert lines[4] == "growth from 400 to 800 interior nodes:"


def test_the_benchmark_of_edits_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """On tiny graphs it prints its table and the growth."""
    bench_edit.main(["--smoke"])
    _, _, *lines, title, growth = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["3", "6"]
    assert all(float(number) > 0 for line in lines for number in line.split()[1:])
    assert title == "growth of these from 3 to 6 parameters:"
    assert all(name in growth for name in bench_edit.LOOPS)


def test_stretching_leaves_every_node_where_it_is(mlp: Sample) -> None:
    """A graph that was stretched has about so many interior nodes; the old ones are on the sides that they were on."""
    graph = mlp.copy().graph
    nodes, flow = list(graph.nodes), JointGraphIndex(graph).flow
    before = [flow.phase(node) for node in nodes]
    bench_flow.stretch(graph, 200)
    graph.lint()
    assert abs(measuring.interior_count(graph) - 200) < len(nodes)
    assert [flow.phase(node) for node in nodes] == before
    assert len(flow.free_nodes) + len(flow.forward_nodes) + len(flow.backward_nodes) == len(graph.nodes) - 1


def test_the_tasks_answer_the_same(any_sample: Sample) -> None:
    """What is compared is comparable: the index's nine answers are torch's, and the records' nodes are among them."""
    graph = any_sample.graph
    nine = bench_index.torchs_nine(graph)
    assert bench_index.ours_nine(graph) == nine
    index = any_sample.index()
    assert bench_index.record_loop(graph) == [
        (index[desc].node, grad.node) for desc, grad in index.grads.items() if desc.is_param()
    ]


def test_filling_up_leaves_the_slots_alone(mlp: Sample) -> None:
    """A graph that was filled up has so many interior nodes, the same slots and the same answers."""
    graph = mlp.copy().graph
    before = bench_index.torchs_nine(graph)
    bench_index.fill_up(graph, 100)
    graph.lint()
    assert measuring.interior_count(graph) == 100
    assert bench_index.torchs_nine(graph) == before
