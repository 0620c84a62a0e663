"""What the benchmarks share: graphs, the best time of a task, a table, a command line."""

import argparse
import gc
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import TypeVar

import attrs
import torch
from torch import fx

from tests.capture import joint
from tests.graphs import copy_of
from tests.models import Llama

Task = Callable[[fx.Graph], object]
Size = TypeVar("Size")


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


def measure(graph: fx.Graph, scale: Scale, tasks: Mapping[str, Task]) -> dict[str, float]:
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


def captured(layers: int) -> fx.GraphModule:
    """The joint graph of a Llama."""
    return copy_of(joint(Llama(layers), torch.randint(50, (1, 8))).graph_module)


def interior_count(graph: fx.Graph) -> int:
    """How many nodes of a graph are no placeholder and no output."""
    return len(graph.nodes) - len(graph.find_nodes(op="placeholder")) - 1


def machine() -> str:
    """What the numbers are of."""
    return f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}"


def show(rows: Sequence[Sequence[str]]) -> str:
    """The table, each column as wide as it must be."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(cells, widths)) for cells in rows)


def run(
    title: str | None,
    arguments: Sequence[str] | None,
    report: Callable[[Size], Iterator[str]],
    *,
    full: Size,
    smoke: Size,
) -> None:
    """Print a report as it is made, for the command line that was given."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--smoke", action="store_true", help="tiny graphs, to see that it works")
    for part in report(smoke if parser.parse_args(arguments).smoke else full):
        print(part, flush=True)
