"""A pass that keeps parameters in half precision, with `edit()` and in plain FX; compiled, and beside eager mode."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import fx, nn
from torch._functorch._aot_autograd.descriptors import GradAOTOutput, ParamAOTInput
from torch._functorch.aot_autograd import aot_compile_joint_with_descriptors, aot_export_joint_with_descriptors

from jointgraph import JointGraphIndex

CAST = torch.ops.aten._to_copy.default


def cast_to(dtype: torch.dtype) -> Callable[[fx.Node], fx.Node]:
    return lambda node: node.graph.call_function(CAST, (node,), {"dtype": dtype})


def with_edit(index: JointGraphIndex) -> None:
    with index.edit() as edit:
        for param in index.params.values():
            edit.set_val(param, param.val.to(torch.bfloat16))
        edit.wrap(index.params.values(), cast_to(torch.float32))
        edit.wrap([param.grad for param in index.params.values() if param.grad], cast_to(torch.bfloat16))


def in_plain_fx(gm: fx.GraphModule) -> None:
    placeholders = gm.graph.find_nodes(op="placeholder")
    params = [node for node in placeholders if isinstance(node.meta["desc"], ParamAOTInput)]
    after = placeholders[-1]
    for node in params:
        node.meta["val"] = node.meta["val"].to(torch.bfloat16)
        if node.users:
            with gm.graph.inserting_after(after):
                after = cast_to(torch.float32)(node)
            after.meta["val"] = node.meta["val"].to(torch.float32)
            after.meta["partitioner_tag"] = "is_forward"
            node.replace_all_uses_with(after, delete_user_cb=lambda user, new=after: user is not new)
    output = gm.graph.output_node()
    returned: list[Any] = [*output.args[0]]  # type: ignore[misc]
    for position, desc in enumerate(output.meta["desc"]):
        grad = returned[position]
        if isinstance(desc, GradAOTOutput) and isinstance(desc.grad_of, ParamAOTInput) and grad is not None:
            with gm.graph.inserting_after(grad):
                returned[position] = cast_to(torch.bfloat16)(grad)
            returned[position].meta["val"] = grad.meta["val"].to(torch.bfloat16)
            returned[position].meta["partitioner_tag"] = "is_backward"
    output.args = (returned,)
    gm.graph.lint()
    gm.recompile()


torch.manual_seed(0)
model, x = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4)), torch.randn(16, 8)


with ExitStack() as stack:
    by_hand = aot_export_joint_with_descriptors(stack, model, (x,)).graph_module
    in_plain_fx(by_hand)
with ExitStack() as stack:
    joint = aot_export_joint_with_descriptors(stack, model, (x,))
    index = JointGraphIndex(joint)
    with_edit(index)
    print("the same code:", joint.graph_module.code == by_hand.code)
    print("findings:", index.check(joint))
    compiled = aot_compile_joint_with_descriptors(joint)

params = [param.detach().bfloat16().requires_grad_() for param in model.parameters()]
grads = torch.autograd.grad(compiled(*params, x).square().mean(), params)
eager = torch.autograd.grad(model(x).square().mean(), [*model.parameters()])
worst = max((grad - one).abs().max() / one.abs().max() for grad, one in zip(grads, eager))
print(f"gradients in {grads[0].dtype}, within {worst:.1%} of eager mode in single precision")
