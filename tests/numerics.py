"""Running a captured graph by way of its index, and the same module in eager mode beside it."""

import copy
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import fx
from torch._functorch._aot_autograd import descriptors as d
from torch.utils._pytree import tree_leaves

from jointgraph import Input, InputKind
from tests.capture import torchs_own_warnings
from tests.models import Sample


@attrs.frozen
class Run:
    """What graph and eager mode gave, for the same random tangents."""

    outputs: Mapping[int, Any]
    """The user's results by number, from the graph."""
    grads: Mapping[d.AOTInput, torch.Tensor]
    """The gradients that the graph returned, by what they are of."""
    mutations: Mapping[d.AOTInput, torch.Tensor]
    """The new values that the graph returned, by what they are of."""
    eager_outputs: Mapping[int, Any]
    eager_grads: Mapping[d.AOTInput, torch.Tensor | None]
    """Eager autograd's gradients, of every input that wants one."""
    eager_buffers: Mapping[d.AOTInput, torch.Tensor]
    """The buffers as the eager call left them."""


def run(sample: Sample) -> Run:
    """Run a sample's joint graph and its module, each on arguments and buffers of its own."""
    index = sample.index()
    module, arguments = copy.deepcopy(sample.module), tree_leaves((sample.args, dict(sample.kwargs)))
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}

    eager_outputs = dict(enumerate(tree_leaves(module(*sample.args, **sample.kwargs))))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        tangents = {
            record.desc: torch.randn_like(eager_outputs[idx])
            for idx, record in index.plain_outputs.items()
            if record.tangent is not None
        }

    def value_of(record: Input) -> object:
        if record.kind is InputKind.PARAM:
            return module.get_parameter(record.name).detach()
        if record.kind is InputKind.BUFFER:
            return buffers[record.name]
        if isinstance(record.desc, d.PlainAOTInput):
            argument = arguments[record.desc.idx]
            return argument.detach() if isinstance(argument, torch.Tensor) else argument
        assert record.tangent_of is not None
        return tangents[record.tangent_of.desc]

    flat = [value_of(record) for record in index.inputs.values()]
    with torchs_own_warnings():
        returned = fx.Interpreter(sample.joint.graph_module).run(*flat, enable_io_processing=False)

    wanted: dict[d.AOTInput, torch.Tensor] = {
        d.ParamAOTInput(name): param
        for name, param in module.named_parameters(remove_duplicate=False)
        if param.requires_grad
    }
    for idx, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor) and argument.requires_grad:
            wanted[d.PlainAOTInput(idx)] = argument
    pairs = [(eager_outputs[idx], tangents[one.desc]) for idx, one in index.plain_outputs.items() if one.tangent]
    return Run(
        outputs={idx: returned[record.position] for idx, record in index.plain_outputs.items()},
        grads={desc: returned[record.position] for desc, record in index.grads.items()},
        mutations={desc: returned[record.position] for desc, record in index.mutations.items()},
        eager_outputs=eager_outputs,
        eager_grads=_gradients(pairs, wanted),
        eager_buffers={d.BufferAOTInput(name): buffer for name, buffer in module.named_buffers()},
    )


def _gradients(
    pairs: list[tuple[torch.Tensor, torch.Tensor]], wanted: Mapping[d.AOTInput, torch.Tensor]
) -> dict[d.AOTInput, torch.Tensor | None]:
    """Eager autograd's gradients of outputs with these tangents."""
    if not pairs:
        return {}
    outputs, tangents = zip(*pairs)
    found = torch.autograd.grad(outputs, [*wanted.values()], tangents, allow_unused=True)
    return dict(zip(wanted, found))
