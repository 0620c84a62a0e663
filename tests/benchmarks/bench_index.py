"""The index beside torch's nine functions and beside the least that any answer costs, measured in one run.

Run it with ``python -m tests.benchmarks.bench_index``; ``--smoke`` takes tiny graphs, to see that it works at all.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import fx
from torch._functorch._aot_autograd import fx_utils as torchs

from jointgraph import JointGraphIndex
from jointgraph import fx_utils as ours
from tests.benchmarks.measuring import Scale, Task, captured, interior_count, machine, measure, run, show

ROOT = Path(__file__).parents[2]


FULL = Scale(layers=32, interiors=(10_000, 100_000, 1_000_000), rounds=5, seconds=0.4)
SMOKE = Scale(layers=1, interiors=(400, 800), rounds=1, seconds=0)


# The tasks.


def torchs_nine(graph: fx.Graph) -> object:
    """Torch's functions, one after the other."""
    return [getattr(torchs, name)(graph) for name in ours.__all__]


def ours_nine(graph: fx.Graph) -> object:
    """An index, and all nine answers from one reading of the graph."""
    index = JointGraphIndex(graph)
    with index.reading():
        return [getattr(ours, name)(index) for name in ours.__all__]


def wary_nine(graph: fx.Graph) -> object:
    """An index, and all nine answers, each of which first looks whether the graph changed."""
    index = JointGraphIndex(graph)
    return [getattr(ours, name)(index) for name in ours.__all__]


def record_loop(graph: fx.Graph) -> object:
    """An index, and the nodes of every parameter and its gradient from their records."""
    return [(p.node, p.grad.node) for p in JointGraphIndex(graph).params.values() if p.grad is not None]


def floor(graph: fx.Graph) -> object:
    """Two dictionaries keyed by descriptor, over placeholders and over outputs."""
    output = graph.output_node()
    inputs = {node.meta["desc"]: node for node in graph.find_nodes(op="placeholder")}
    return inputs, dict(zip(output.meta["desc"], cast(Sequence[object], output.args[0])))


TASKS: Mapping[str, Task] = {
    "torch": torchs_nine,
    "index": ours_nine,
    "wary": wary_nine,
    "records": record_loop,
    "floor": floor,
}


IMPORTS = (
    "import jointgraph",
    "from jointgraph import JointGraphIndex",
    "import attrs, torch._functorch._aot_autograd.descriptors",  # The dependencies' share of the second one.
)


# Measuring.


def measure_import(statement: str, rounds: int) -> float:
    """The best time of an import in a new interpreter that has imported torch, in seconds."""
    code = f"import time, torch; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", code]
    runs = [
        subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
        for _ in range(rounds)
    ]
    return min(float(run.stdout) for run in runs)


# The graphs.


def fill_up(graph: fx.Graph, count: int) -> None:
    """Add a chain of cheap nodes before the output, until there are ``count`` interior nodes."""
    node: fx.Node = graph.find_nodes(op="placeholder")[0]
    with graph.inserting_before(graph.output_node()):
        for _ in range(count - interior_count(graph)):
            node = graph.call_function(torch.ops.aten.neg.default, (node,))


# The report.

RATIOS = (("torch", "index"), ("index", "floor"), ("torch", "wary"), ("records", "floor"))
HEAD = ("graph", "interior", "slots", *TASKS, *("/".join(pair) for pair in RATIOS))


def row(title: str, graph: fx.Graph, times: Mapping[str, float]) -> tuple[str, ...]:
    """One line of the table: times in milliseconds, then ratios."""
    inputs, outputs = len(graph.find_nodes(op="placeholder")), len(graph.output_node().meta["desc"])
    milliseconds = [f"{1000 * times[name]:.3f}" for name in TASKS]
    ratios = [f"{times[a] / times[b]:.2f}" for a, b in RATIOS]
    return title, f"{interior_count(graph):,}", f"{inputs} + {outputs}", *milliseconds, *ratios


def report(scale: Scale) -> Iterator[str]:
    """The whole report, part by part."""
    yield f"{machine()}; best times in milliseconds"
    module = captured(scale.layers)
    graph = module.graph
    first = measure(graph, scale, TASKS)
    rows = [HEAD, row(f"Llama, {scale.layers} layers", graph, first)]
    by_size: dict[int, dict[str, float]] = {}
    for count in scale.interiors:
        fill_up(graph, count)
        by_size[count] = measure(graph, scale, TASKS)
        rows.append(row("same slots", graph, by_size[count]))
    yield show(rows)

    small, large = min(by_size), max(by_size)
    yield f"growth from {small:,} to {large:,} interior nodes:"
    yield "  ".join(f"{name} {by_size[large][name] / by_size[small][name]:.2f}" for name in TASKS)
    for statement in IMPORTS:
        yield f"{1000 * measure_import(statement, scale.rounds):.1f} ms: {statement}, on top of import torch"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    run(__doc__, arguments, report, full=FULL, smoke=SMOKE)


if __name__ == "__main__":
    main()
