"""The models that the tests share, each with arguments to capture it with."""

import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import attrs
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it
from torch import fx, nn

from jointgraph import JointGraphIndex
from tests.capture import JointWithDescriptors, joint
from tests.graphs import copy_of


@attrs.define(eq=False, slots=False)  # A cached property needs a __dict__.
class Sample:
    """A model, the arguments it is called with, and the graph that AOTAutograd makes of the call."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = attrs.field(factory=dict)

    @cached_property
    def joint(self) -> JointWithDescriptors:
        """The capture: the same object at each asking, so no test may change it."""
        return joint(self.module, *self.args, **self.kwargs)

    @property
    def graph(self) -> fx.Graph:
        """The captured graph, which no test may change."""
        graph = self.joint.graph_module.graph
        assert isinstance(graph, fx.Graph)
        return graph

    def index(self) -> JointGraphIndex:
        """A new index of the captured graph."""
        return JointGraphIndex(self.joint)

    def copy(self) -> fx.GraphModule:
        """A copy of the graph, to change."""
        return copy_of(self.joint.graph_module)


class MLP(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(self.first(x).relu())
        return y


class ConvBatchNorm(nn.Module):
    """A convolution and a batch norm, which in training mutates its three buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.conv(x)).relu().mean((2, 3))
        return y


class TiedEmbedding(nn.Module):
    """A language model in small: the head has the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.embed(ids).tanh())
        return y


class ThreeAnswers(nn.Module):
    """One parameter with a gradient, two that ask for one in vain, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Parameter(torch.randn(3))
        self.unused = nn.Parameter(torch.randn(3))
        self.detached = nn.Parameter(torch.randn(3))
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.used * self.frozen + self.detached.detach()


class ManyOutputs(nn.Module):
    """Two results, the first of them once more, ``None``, an integer, an argument and a detached tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor) -> tuple[object, ...]:
        product = x * self.scale
        return product, product.sum(), product, None, 7, x, product.detach() + 1


class TwoInputs(nn.Module):
    """A bilinear form of two arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight * y).sum(-1) + z.detach()


class ManyArguments(nn.Module):
    """An integer, ``None`` and keywords among the arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor, power: int, nothing: None, *, shift: torch.Tensor, negate: bool) -> torch.Tensor:
        y = x**power * self.weight + shift
        return -y if negate else y


class RMSNorm(nn.Module):
    """Root mean square normalisation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class LlamaBlock(nn.Module):
    """Attention with rotary positions, and a gated feed-forward network."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.ffn_norm = RMSNorm(width), RMSNorm(width)
        self.wq, self.wk = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.wv, self.wo = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.w1, self.w3 = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        y = self.attention_norm(x)
        q, k, v = (w(y).view(batch, length, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = q * cos + _rotate(q) * sin, k * cos + _rotate(k) * sin
        mask = torch.full((length, length), float("-inf")).triu(1)
        weights = (q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)) + mask).softmax(-1)
        x = x + self.wo((weights @ v).transpose(1, 2).reshape(batch, length, width))
        y = self.ffn_norm(x)
        z: torch.Tensor = x + self.w2(F.silu(self.w1(y)) * self.w3(y))
        return z


def _rotate(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class Llama(nn.Module):
    """The shape of a Llama in plain torch, narrow: 9 parameters to a layer, 3 more, and one buffer."""

    frequencies: torch.Tensor

    def __init__(self, layers: int, width: int = 16, heads: int = 2, hidden: int = 32, vocabulary: int = 50) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaBlock(width, heads, hidden) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        size = width // heads
        self.register_buffer("frequencies", 1 / (10000 ** (torch.arange(0, size, 2) / size)))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        angles = torch.outer(torch.arange(ids.size(1)), self.frequencies)
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos(), angles.sin()
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        y: torch.Tensor = self.head(self.norm(x))
        return y


def _wants_grad(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def _transformer() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


_SAMPLES: Mapping[str, Callable[[], Sample]] = {
    "mlp": lambda: Sample(MLP(), (torch.randn(5, 8),)),
    "batch_norm": lambda: Sample(ConvBatchNorm(), (torch.randn(2, 3, 6, 6),)),
    "tied": lambda: Sample(TiedEmbedding(), (torch.randint(10, (2, 5)),)),
    "three_answers": lambda: Sample(ThreeAnswers(), (torch.randn(2, 3),)),
    "many_outputs": lambda: Sample(ManyOutputs(), (torch.randn(2, 3),)),
    "grad_inputs": lambda: Sample(TwoInputs(), (_wants_grad(2, 3), torch.randn(2, 3), _wants_grad(2))),
    "arguments": lambda: Sample(
        ManyArguments(), (torch.randn(2, 3), 3, None), {"shift": torch.randn(3), "negate": True}
    ),
    "inference": lambda: Sample(MLP().requires_grad_(False), (torch.randn(5, 8),)),
    "transformer": lambda: Sample(_transformer(), (torch.randn(2, 5, 8),)),
    "llama": lambda: Sample(Llama(layers=2), (torch.randint(50, (2, 6)),)),
}

NAMES = tuple(_SAMPLES)
"""The names of the samples; each is a fixture as well."""

_made: dict[str, Sample] = {}


def sample(name: str) -> Sample:
    """The sample of this name, made once."""
    if name not in _made:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            _made[name] = _SAMPLES[name]()
    return _made[name]
