"""Capture the joint graph of a small transformer, and find its parameters, gradients and tangents."""

from contextlib import ExitStack

import torch
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

from jointgraph import JointGraphIndex


class TextClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 2)
        self.head = nn.Linear(32, 5)
        self.embed.weight.requires_grad_(False)  # frozen

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.encoder(self.embed(tokens)).mean(dim=1))
        return logits


with ExitStack() as stack:
    joint = aot_export_joint_with_descriptors(stack, TextClassifier(), (torch.randint(100, (8, 16)),))

index = JointGraphIndex(joint)
print(index)

for name, param in list(index.params.items())[:4]:
    if param.grad is not None:
        print(f"{name}: in {param.node}, {param.nbytes} bytes; its gradient in {param.grad.node}")
    else:
        print(f"{name}: in {param.node}, {param.nbytes} bytes; gradient {param.grad_status.value}")

output = index.plain_outputs[0]
print(f"output 0: in {output.node}; its tangent in {index.tangents[output.desc].node}")
