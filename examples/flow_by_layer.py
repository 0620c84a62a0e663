"""A small transformer by layer: nodes of forward, nodes of backward, and the bytes that are saved between them."""

from collections import Counter, OrderedDict
from contextlib import ExitStack

import torch
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

from jointgraph import CrossingRole, JointGraphIndex

layers = {f"layer{n}": nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True) for n in (1, 2)}
model = nn.Sequential(OrderedDict(embed=nn.Embedding(100, 32), **layers, head=nn.Linear(32, 5)))
tokens = torch.randint(100, (8, 16))
exported = torch.export.export(model, (tokens,)).module()  # It records which module each node is of.
with ExitStack() as stack:
    index = JointGraphIndex(aot_export_joint_with_descriptors(stack, exported, (tokens,)))

table: dict[str, Counter[str]] = {name: Counter() for name, _ in model.named_children()}
with index.reading():
    flow = index.flow
    for node in flow.forward_nodes + flow.backward_nodes:
        path = flow.module_of(node)
        if path:
            table[path.split(".")[0]][flow.phase(node).value] += 1
    for path, nbytes in flow.boundary.of_role(CrossingRole.EXTRA).by_module.items():
        table[str(path).split(".")[0]]["saved"] += int(nbytes)

print("layer    forward  backward  saved bytes")
for layer, counts in table.items():
    print(f"{layer:8} {counts['forward']:7} {counts['backward']:9} {counts['saved']:12}")
