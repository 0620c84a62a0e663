"""What happens to each parameter before anything else is mixed in, and what ends that."""

from contextlib import ExitStack

import torch
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.nn.functional import linear

from jointgraph import JointGraphIndex


class MixedPrecision(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 5)
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.embed(tokens)).bfloat16()
        return linear(hidden, self.head.weight.bfloat16(), self.head.bias.bfloat16())


with ExitStack() as stack:
    joint = aot_export_joint_with_descriptors(stack, MixedPrecision(), (torch.randint(100, (8, 16)),))

index = JointGraphIndex(joint)
for name, param in index.params.items():
    chain = index.flow.chain(param)
    line = " -> ".join(map(str, (param.node, *chain.nodes)))
    print(f"{name}: {line}; {chain.stop.value} {', '.join(map(str, chain.at))}".rstrip())
