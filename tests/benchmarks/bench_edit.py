"""What a pass pays that asks and edits in a loop over all parameters: time for each, as their number grows.

Run it with ``python -m tests.benchmarks.bench_edit``; ``--smoke`` takes tiny graphs, to see that it works at all.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import is_not

import attrs
import torch
from torch import fx, nn
from torch._functorch._aot_autograd.descriptors import BufferAOTInput

from jointgraph import JointGraphIndex
from tests.benchmarks.measuring import machine, no_collection, run, show
from tests.capture import joint
from tests.graphs import copy_of

Loop = Callable[[JointGraphIndex], object]


@attrs.frozen
class Scale:
    """How many parameters the graphs have."""

    sizes: Sequence[int]


FULL = Scale(sizes=(500, 1_000, 2_000, 4_000))
SMOKE = Scale(sizes=(3, 6))


class Many(nn.Module):
    """As many parameters as asked for, each with a gradient."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(())) for _ in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([weight.sin() for weight in self.weights]).sum() * x


# The loops.


def negated(node: fx.Node) -> fx.Node:
    """A new node."""
    return node.graph.call_function(torch.ops.aten.neg.default, (node,))


def ask_and_insert(index: JointGraphIndex) -> None:
    """Plain FX: ask for a parameter and its gradient, put a node behind the parameter, ask again."""
    for param in index.params.values():
        if param.grad is not None:
            with index.graph.inserting_after(param.grad.node):
                new = negated(param.node)
            param.node.replace_all_uses_with(new, delete_user_cb=partial(is_not, new))
            assert param.grad.node is not None


def wrap_one_by_one(index: JointGraphIndex) -> None:
    """``edit()``: wrap each parameter, and ask for it and its gradient before and after."""
    with index.edit() as edit:
        for param in index.params.values():
            assert param.grad is not None
            edit.wrap(param, negated)
            assert param.grad.node is not None


def wrap_gradients(index: JointGraphIndex) -> None:
    """``edit()``: wrap all gradients in one step."""
    with index.edit() as edit:
        edit.wrap(index.grads.values(), negated)


def add_states(index: JointGraphIndex) -> None:
    """``edit()``: add an input for each parameter in one step, and take all gradients away in another."""
    with index.edit() as edit:
        edit.add_inputs({BufferAOTInput(f"{name}.state"): torch.ones(()) for name in index.params})
        edit.remove(index.grads.values())


LOOPS: Mapping[str, Loop] = {
    "ask, insert, ask": ask_and_insert,
    "ask, wrap, ask": wrap_one_by_one,
    "wrap gradients": wrap_gradients,
    "add and remove": add_states,
}
HEAD = ("parameters", *LOOPS)


def measure(module: fx.GraphModule, loop: Loop) -> float:
    """The seconds that one loop takes on a copy of a graph."""
    index = JointGraphIndex(copy_of(module))
    with no_collection():
        start = time.perf_counter()
        loop(index)
        return time.perf_counter() - start


def report(scale: Scale) -> Iterator[str]:
    """The whole report, part by part."""
    yield f"{machine()}; microseconds a parameter"
    rows: list[Sequence[str]] = [HEAD]
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for size in scale.sizes:
        module = joint(Many(size), torch.randn(3)).graph_module
        last = {name: measure(module, loop) / size for name, loop in LOOPS.items()}
        first = first or last
        rows.append((f"{size:,}", *(f"{1e6 * seconds:.0f}" for seconds in last.values())))
    yield show(rows)
    yield f"growth of these from {min(scale.sizes):,} to {max(scale.sizes):,} parameters:"
    yield "  ".join(f"{name} {last[name] / first[name]:.2f}" for name in LOOPS)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    run(__doc__, arguments, report, full=FULL, smoke=SMOKE)


if __name__ == "__main__":
    main()
