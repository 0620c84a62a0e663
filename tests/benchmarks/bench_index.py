"""The index beside torch's nine functions and beside the least that any answer costs, measured in one run.

Run it with ``python -m tests.benchmarks.bench_index``; ``--smoke`` takes tiny graphs, to see that it works at all.
"""

import argparse
import gc
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import cast

import attrs
import torch
from torch import fx
from torch._functorch._aot_autograd import fx_utils as torchs

from jointgraph import JointGraphIndex
from jointgraph import fx_utils as ours
from tests.capture import joint
from tests.graphs import copy_of
from tests.models import Llama

Task = Callable[[fx.Graph], object]
ROOT = Path(__file__).parents[2]


@attrs.frozen
class Scale:
    """How large and how long a run is."""

    layers: int
    interiors: Sequence[int]
    """How many interior nodes to put between the same slots."""
    rounds: int
    """How often to take each measurement; the best one counts."""
    seconds: float
    """How long to repeat one task within a round; it runs at least once."""


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


@contextmanager
def no_collection() -> Iterator[None]:
    """Keeps the garbage collector out, which would go through a million nodes at any moment."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def measure(graph: fx.Graph, scale: Scale, tasks: Mapping[str, Task] = TASKS) -> dict[str, float]:
    """The best time of each task in seconds; the tasks take turns, so that a slow spell of the machine hits all."""
    best = dict.fromkeys(tasks, inf)
    with no_collection():
        for _ in range(scale.rounds):
            for name, task in tasks.items():
                best[name] = min(best[name], best_of(task, graph, scale.seconds))
    return best


def best_of(task: Task, graph: fx.Graph, seconds: float) -> float:
    """The best time of one task, repeated for that long."""
    best, end = inf, time.perf_counter() + seconds
    while best == inf or time.perf_counter() < end:
        start = time.perf_counter()
        task(graph)
        best = min(best, time.perf_counter() - start)
    return best


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


def captured(layers: int) -> fx.GraphModule:
    """The joint graph of a Llama."""
    return copy_of(joint(Llama(layers), torch.randint(50, (1, 8))).graph_module)


def interior_count(graph: fx.Graph) -> int:
    """How many nodes of a graph are no placeholder and no output."""
    return len(graph.nodes) - len(graph.find_nodes(op="placeholder")) - 1


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


def machine() -> str:
    """What the numbers are of."""
    return f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}"


def show(rows: Sequence[Sequence[str]]) -> str:
    """The table, each column as wide as it must be."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(cells, widths)) for cells in rows)


def report(scale: Scale) -> Iterator[str]:
    """The whole report, part by part."""
    yield f"{machine()}; best times in milliseconds"
    module = captured(scale.layers)
    graph = module.graph
    first = measure(graph, scale)
    rows = [HEAD, row(f"Llama, {scale.layers} layers", graph, first)]
    by_size: dict[int, dict[str, float]] = {}
    for count in scale.interiors:
        fill_up(graph, count)
        by_size[count] = measure(graph, scale)
        rows.append(row("same slots", graph, by_size[count]))
    yield show(rows)

    small, large = min(by_size), max(by_size)
    yield f"growth from {small:,} to {large:,} interior nodes:"
    yield "  ".join(f"{name} {by_size[large][name] / by_size[small][name]:.2f}" for name in TASKS)
    for statement in IMPORTS:
        yield f"{1000 * measure_import(statement, scale.rounds):.1f} ms: {statement}, on top of import torch"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny graphs, one round")
    scale = SMOKE if parser.parse_args(arguments).smoke else FULL
    for part in report(scale):
        print(part, flush=True)


if __name__ == "__main__":
    main()
