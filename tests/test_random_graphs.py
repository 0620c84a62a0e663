"""What holds for every graph, on graphs of random modules, captured for real."""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import attrs
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch._functorch._aot_autograd import descriptors as d

from jointgraph import GradStatus, GraphKind, JointGraphIndex
from tests.capture import joint, partition
from tests.differential import check_same_answers
from tests.invariants import check_invariants

UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sin": torch.sin,
    "sigmoid": torch.sigmoid,
    "detach": lambda x: x.detach(),
    "view": lambda x: x.view(-1),
    "flip": lambda x: x.flip(0),
}
BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"add": torch.add, "mul": torch.mul}


class Write(Enum):
    """What the program does to an input before all else."""

    NOTHING = "nothing"
    NUMBER = "adds a number"
    VALUE = "adds another input"


@attrs.frozen
class Param:
    """A parameter: of its own, or that of another number."""

    trainable: bool
    tied_to: int | None
    doubled: bool
    """Whether the program doubles it, unseen by autograd."""


@attrs.frozen
class Other:
    """A buffer or an argument."""

    wants_grad: bool
    write: Write


@attrs.frozen
class Step:
    """An operation on one or two values of those there are: inputs first, then results of earlier steps."""

    operation: str
    values: tuple[int, int]


@attrs.frozen
class Recipe:
    """A module, in short."""

    params: Sequence[Param]
    buffers: Sequence[Other]
    args: Sequence[Other]
    steps: Sequence[Step]
    outputs: Sequence[int | str | None]
    """Values by number from the last one, views of them by negative numbers, or other things as they are."""


class Cooked(nn.Module):
    """The module of a recipe. All tensors have three elements."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        for number, param in enumerate(recipe.params):
            tied = None if param.tied_to is None else getattr(self, f"p{param.tied_to}")
            self.register_parameter(f"p{number}", tied if tied is not None else _parameter(param))
        for number, buffer in enumerate(recipe.buffers):
            self.register_buffer(f"b{number}", _tensor(buffer))

    def inputs(self) -> dict[d.AOTInput, torch.Tensor]:
        """The parameters and buffers by descriptor."""
        inputs: dict[d.AOTInput, torch.Tensor] = {d.BufferAOTInput(name): one for name, one in self.named_buffers()}
        for name, param in self.named_parameters(remove_duplicate=False):
            inputs[d.ParamAOTInput(name)] = param
        return inputs

    def forward(self, *args: torch.Tensor) -> tuple[Any, ...]:
        params = [getattr(self, f"p{number}") for number in range(len(self.recipe.params))]
        buffers = [getattr(self, f"b{number}") for number in range(len(self.recipe.buffers))]
        values = [*params, *buffers, *args]
        for recipe, param in zip(self.recipe.params, params, strict=True):
            if recipe.doubled:
                with torch.no_grad():
                    param.mul_(2)
        for other, tensor in zip((*self.recipe.buffers, *self.recipe.args), (*buffers, *args), strict=True):
            if other.write is not Write.NOTHING:
                tensor.add_(1 if other.write is Write.NUMBER else values[0])
        for step in self.recipe.steps:
            one, two = (values[number % len(values)] for number in step.values)
            values.append(BINARY[step.operation](one, two) if step.operation in BINARY else UNARY[step.operation](one))
        return tuple(_output(out, values) if isinstance(out, int) else out for out in self.recipe.outputs)


def _output(number: int, values: Sequence[torch.Tensor]) -> torch.Tensor:
    value = values[-1 - abs(number) % len(values)]
    return value.view(-1) if number < 0 else value


def _parameter(param: Param) -> nn.Parameter:
    return nn.Parameter(torch.randn(3), requires_grad=param.trainable)


def _tensor(other: Other) -> torch.Tensor:
    """One that may be written to: no leaf, if it wants a gradient."""
    tensor = torch.randn(3, requires_grad=other.wants_grad)
    return tensor.clone() if other.wants_grad else tensor


@st.composite
def _params(draw: st.DrawFn) -> list[Param]:
    params: list[Param] = []
    for number in range(draw(st.integers(1, 4))):
        own = [other for other in range(number) if params[other].tied_to is None]
        tied_to = draw(st.none() | st.sampled_from(own)) if own else None
        trainable, doubled = draw(st.sampled_from([True, True, False])), draw(st.sampled_from([False, False, True]))
        params.append(Param(trainable, tied_to, doubled))
    return params


others = st.builds(Other, st.booleans(), st.sampled_from(Write))
numbers = st.integers(0, 20)
operations = st.sampled_from([*UNARY, *BINARY, *BINARY, "view"])


def _torch_can(recipe: Recipe) -> bool:
    """Whether no tied parameter is mutated: torch mixes up tangents then, but for the simplest of modules."""
    owners = [number if param.tied_to is None else param.tied_to for number, param in enumerate(recipe.params)]
    return all(owners.count(owner) == 1 for owner, param in zip(owners, recipe.params, strict=True) if param.doubled)


recipes = st.builds(
    Recipe,
    params=_params(),
    buffers=st.lists(others, max_size=2),
    args=st.lists(others, max_size=3),
    steps=st.lists(st.builds(Step, operations, st.tuples(numbers, numbers)), max_size=8),
    outputs=st.lists(st.integers(-5, 5) | st.sampled_from([None, "word"]), min_size=1, max_size=4),
).filter(_torch_can)


@given(recipes)
@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
def test_what_holds_for_every_graph_holds_for_random_ones(recipe: Recipe) -> None:
    """Invariants, torch's nine functions and eager PyTorch agree with the index, on the graph and on its halves."""
    model = Cooked(recipe)
    args = [_tensor(arg) for arg in recipe.args]
    captured = joint(model, *args)
    index = JointGraphIndex(captured)
    check_invariants(index)
    check_same_answers(index.graph)
    _check_against_eager(index, model, args)
    if index.kind is GraphKind.JOINT:
        forward, backward = map(JointGraphIndex, partition(captured))
        check_invariants(forward)
        check_invariants(backward)
        check_same_answers(forward.graph)
        check_same_answers(backward.graph)
        assert backward.kind is GraphKind.BACKWARD
        assert {*forward.saved} == {*backward.saved}
        assert {*index.grads} == {*backward.grads}
        assert [*index.outputs][: len(forward.plain_outputs)] == [*forward.outputs][: len(forward.plain_outputs)]


def _check_against_eager(index: JointGraphIndex, model: Cooked, args: Sequence[torch.Tensor]) -> None:
    """The index knows what is mutated, tied, returned twice and frozen, as a run of the module shows it."""
    tensors = model.inputs()
    for idx, arg in enumerate(args):
        tensors[d.PlainAOTInput(idx)] = arg
    versions = {desc: tensor._version for desc, tensor in tensors.items()}
    wanted = {desc: tensor.requires_grad for desc, tensor in tensors.items()}
    results = model(*args)

    for desc, record in index.inputs.items():
        if desc not in tensors:
            assert record.tangent_of is not None
            continue
        tensor = tensors[desc]
        assert (record.mutation is not None) == (tensor._version > versions[desc])
        assert {alias.desc for alias in record.aliases} == {
            other for other in index.inputs if other != desc and tensors.get(other) is tensor
        }
        if index.kind is GraphKind.JOINT:
            assert (record.grad_status is not GradStatus.NOT_REQUESTED) == wanted[desc]
    assert len(index.plain_outputs) == len(results)
    for idx, output in index.plain_outputs.items():
        assert (output.node is None) == (not isinstance(results[idx], torch.Tensor))
        if output.node is None:
            assert output.value == results[idx]
        if not any(results[idx] is tensor for tensor in tensors.values()):  # A tied one has a node for each name.
            same = [other for other in index.plain_outputs if results[other] is results[idx]]
            assert {index.plain_outputs[other].node for other in same} == {output.node}
