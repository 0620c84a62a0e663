"""What `check()` says of a graph whose outputs were sorted, and their descriptors were not."""

from contextlib import ExitStack

import torch
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

from jointgraph import JointGraphIndex, Severity

with ExitStack() as stack:
    joint = aot_export_joint_with_descriptors(stack, nn.Linear(8, 4), (torch.randn(2, 8),))
index = JointGraphIndex(joint)
print("as captured:", index.check(joint))

result, weight_grad, bias_grad = (output.node for output in index.outputs.values())
index.graph.output_node().args = ([result, bias_grad, weight_grad, None],)
for finding in index.check(joint):
    if finding.severity is Severity.ERROR:
        print(finding)
