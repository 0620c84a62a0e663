"""Where a node came from, as far as the capture recorded it: the module it was traced in, and its forward twin.

Dataflow does not tell this. It is in ``meta``: ``nn_module_stack``, which Dynamo and ``torch.export`` write, and
``seq_nr``, which numbers the calls of forward and has the same number on the nodes of backward that belong to a call.
"""

from collections.abc import Iterable, Mapping, Sequence

import attrs
from torch import fx

_ROOTS = ("L['self']", "L['fn']")
"""What Dynamo calls the module that it compiles."""


@attrs.frozen
class Twins:
    """The first node of each ``seq_nr``, in forward and in backward."""

    forward: Mapping[object, fx.Node]
    backward: Mapping[object, fx.Node]

    def of(self, node: fx.Node) -> fx.Node | None:
        """The twin of a node, if there is one."""
        number = _number(node)
        return (self.forward if _in_backward(node) else self.backward).get(number) if number is not None else None


def find_twins(nodes: Sequence[fx.Node]) -> Twins:
    """Match the nodes of forward and backward. One pass."""
    forward: dict[object, fx.Node] = {}
    backward: dict[object, fx.Node] = {}
    for node in nodes:
        number = _number(node)
        if number is not None:
            (backward if _in_backward(node) else forward).setdefault(number, node)
    return Twins(forward, backward)


def _number(node: fx.Node) -> object:
    """The number of the forward call that a node is part of.

    A sum of gradients has one, but is part of none; a saved activation in a backward graph has that of its maker.
    """
    return None if node.op == "placeholder" or node.meta.get("is_gradient_acc") else node.meta.get("seq_nr")


def _in_backward(node: fx.Node) -> bool:
    """Whether autograd made the node while it ran backward, as the capture recorded it."""
    return bool(node.meta.get("autograd_backward")) or node.meta.get("partitioner_tag") == "is_backward"


def module_path(node: fx.Node, twin: fx.Node | None) -> str | None:
    """The path of the innermost module that a node, else its twin, was traced in; ``None`` if neither recorded it."""
    stacks = [node.meta.get("nn_module_stack"), node.meta.get("fwd_nn_module_stack")]
    if twin is not None:
        stacks.append(twin.meta.get("nn_module_stack"))
    stack = next(filter(None, stacks), None)
    return None if stack is None else _path([*stack.values()][-1][0])


def _path(recorded: str) -> str:
    """A recorded path from the captured module on."""
    for root in _ROOTS:
        if recorded == root:
            return ""
        if recorded.startswith(f"{root}."):
            return recorded[len(root) + 1 :]
    return recorded


def modules_of(nodes: Iterable[fx.Node], twins: Twins) -> list[str | None]:
    """The path of the module of each node."""
    return [module_path(node, twins.of(node) if _in_backward(node) else None) for node in nodes]
