"""What the interior says, beside one walk that reads ``all_input_nodes`` of every node, measured in one run.

Run it with ``python -m tests.benchmarks.bench_flow``; ``--smoke`` takes tiny graphs, to see that it works at all.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import fx

from jointgraph import Flow, JointGraphIndex
from jointgraph.interface import Interface
from tests.benchmarks.measuring import Scale, Task, captured, interior_count, machine, measure, run, show

FULL = Scale(layers=32, interiors=(25_000, 100_000, 400_000), rounds=5, seconds=0.4)
SMOKE = Scale(layers=1, interiors=(400, 800), rounds=1, seconds=0)


# The tasks.


def walk(graph: fx.Graph) -> object:
    """One walk over all nodes and their inputs."""
    for node in graph.nodes:
        _ = node.all_input_nodes
    return None


def tasks_of(graph: fx.Graph) -> Mapping[str, Task]:
    """The tasks on one graph.

    For the boundary, the phases and the sources of all nodes are found. The last two tasks are on a flow that was asked
    before: one more answer, for which the graph is compared with what it was; and the phase of each node while reading.
    """
    interface = Interface(graph)
    asked, nodes = Flow(interface), list(graph.nodes)

    def all_three(_: fx.Graph) -> object:
        return Flow(interface).boundary

    def sinks(_: fx.Graph) -> object:
        return Flow(interface).sinks(nodes[-1])

    def again(_: fx.Graph) -> object:
        return asked.phase(nodes[0])

    def each_phase(_: fx.Graph) -> object:
        with interface.reading():
            return list(map(asked.phase, nodes))

    return dict(zip(TASKS, (walk, all_three, sinks, again, each_phase)))


# The graphs.


def stretch(graph: fx.Graph, count: int) -> None:
    """Put the same run of cheap nodes after each node that makes a tensor, for about ``count`` interior nodes in all.

    Each is as live, and on the same side, as the node that it follows.
    """
    makers = [
        node
        for node in graph.nodes
        if node.op not in {"placeholder", "output"} and isinstance(node.meta.get("val"), torch.Tensor)
    ]
    run = round((count - interior_count(graph)) / len(makers))
    for maker in makers:
        users, last = [*maker.users], maker
        for _ in range(run):
            with graph.inserting_after(last):
                last = graph.call_function(torch.ops.aten.neg.default, (last,))
        for user in users:
            user.replace_input_with(maker, last)


# The report.

TASKS = ("walk", "all three", "sinks", "again", "each phase")
HEAD = ("graph", "nodes", "inputs", "crossings", *TASKS, *(f"{name}/walk" for name in TASKS[1:]))


def row(title: str, graph: fx.Graph, times: Mapping[str, float]) -> tuple[str, ...]:
    """One line of the table: times in milliseconds, then ratios."""
    milliseconds = [f"{1000 * times[name]:.3f}" for name in TASKS]
    ratios = [f"{times[name] / times['walk']:.2f}" for name in TASKS[1:]]
    inputs, crossings = len(graph.find_nodes(op="placeholder")), len(JointGraphIndex(graph).flow.boundary)
    return title, f"{len(graph.nodes):,}", f"{inputs:,}", f"{crossings:,}", *milliseconds, *ratios


def report(scale: Scale) -> Iterator[str]:
    """The whole report, part by part."""
    yield f"{machine()}; best times in milliseconds"
    rows = [HEAD]
    for layers in (2 * scale.layers, scale.layers):
        module = captured(layers)
        rows.append(row(f"Llama, {layers} layers", module.graph, measure(module.graph, scale, tasks_of(module.graph))))
    by_size: dict[int, dict[str, float]] = {}
    for count in scale.interiors:
        module = captured(scale.layers)
        stretch(module.graph, count)
        by_size[count] = measure(module.graph, scale, tasks_of(module.graph))
        rows.append(row("stretched", module.graph, by_size[count]))
    yield show(rows)
    small, large = min(by_size), max(by_size)
    yield f"growth from {small:,} to {large:,} interior nodes:"
    yield "  ".join(f"{name} {by_size[large][name] / by_size[small][name]:.2f}" for name in TASKS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    run(__doc__, arguments, report, full=FULL, smoke=SMOKE)


if __name__ == "__main__":
    main()
