"""Index a model whose parameter is a DTensor on a 2 x 2 mesh; a fake process group stands in for four processes."""

from contextlib import ExitStack

import torch
import torch.distributed as dist
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from jointgraph import JointGraphIndex

dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))

linear = nn.Linear(8, 16, bias=False)
linear.weight = nn.Parameter(distribute_tensor(linear.weight, mesh, [Replicate(), Shard(0)]))
batch = distribute_tensor(torch.randn(4, 8), mesh, [Shard(0), Replicate()])
with ExitStack() as stack:
    joint = aot_export_joint_with_descriptors(stack, linear, (batch,))
dist.destroy_process_group()

index = JointGraphIndex(joint)
weight = index.params["weight"]
print(weight)
print(weight.grad)
for param_leaf, grad_leaf in index.input_grads[weight.desc].leaf_pairs():
    print(f"{param_leaf.path}: {param_leaf.node} <-> {grad_leaf.node}")
