"""What a node's ``meta["val"]`` must be: operators run on fake tensors, and values compared by shape, dtype, device."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from logging import getLogger
from operator import attrgetter
from typing import Any, cast

import torch
from torch import fx
from torch.fx.node import map_arg

from jointgraph import _torch as t
from jointgraph.exceptions import EditError

Mode = t.FakeTensorMode
_NONE: Mapping[fx.Node, Any] = {}


class Unknown(Exception):  # noqa: N818  # Never raised out of the library: it says that there is nothing to compute.
    """A node's value can't be told, as a value that it depends on isn't known, or as running it has effects."""


def mode_of(nodes: Iterable[fx.Node]) -> Mode | None:
    """The fake mode that the nodes' values were made under; ``None`` if none of them is fake."""
    found = (mode for node in nodes for mode in _modes(node.meta.get("val")))
    return next(found, None)


def _modes(val: object) -> Iterator[Mode]:
    if isinstance(val, t.FakeTensor):
        yield val.fake_mode
    elif isinstance(val, (list, tuple)):
        for one in val:
            yield from _modes(one)


def as_fake(val: Any, mode: Mode | None) -> Any:
    """A value under one fake mode: a real tensor is made fake, of static shape; one of another mode is made anew.

    Raises:
        Unknown: if a tensor of another mode has symbolic sizes, which mean nothing in this one.
    """
    if isinstance(val, (list, tuple)):
        return type(val)([as_fake(one, mode) for one in val]) if type(val) in {list, tuple} else val
    if mode is None or not isinstance(val, torch.Tensor):
        return val
    if not isinstance(val, t.FakeTensor):
        return mode.from_tensor(val, static_shapes=True)
    if val.fake_mode is mode:
        return val
    if val.layout is not torch.strided or not all(isinstance(number, int) for number in (*val.size(), *val.stride())):
        raise Unknown
    with mode:
        return torch.empty_strided(val.size(), val.stride(), dtype=val.dtype, device=val.device)


def compute(node: fx.Node, mode: Mode | None, vals: Mapping[fx.Node, Any] = _NONE) -> Any:
    """The value that a node's operator makes of the values of its arguments, without running it for real.

    Args:
        node: the node.
        mode: the fake mode of the values.
        vals: values to take instead of those that nodes have.

    Raises:
        Unknown: if an argument has no value, or the operator has effects.
        Exception: whatever the operator raises where its arguments don't fit.
    """
    if node.op != "call_function" or mode is None or _has_effects(node):
        raise Unknown

    def val_of(one: fx.Node) -> Any:
        return as_fake(vals[one] if one in vals else _val(one), mode)

    args, kwargs = cast(tuple[Any, Any], map_arg((node.args, node.kwargs), val_of))
    with mode, torch.no_grad(), _quiet(), _unrecorded(mode):
        return cast(Any, node.target)(*args, **kwargs)


@contextmanager
def _unrecorded(mode: Mode) -> Iterator[None]:
    """Keeps symbolic sizes as they are: no guard is added, and no symbol is left to be bound by someone."""
    if mode.shape_env is None:
        yield
        return
    with mode.shape_env.suppress_guards(), mode.shape_env.ignore_fresh_unbacked_symbols():
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps torch from printing a traceback of what is then reported as an error or a finding."""
    logger = getLogger(t.FakeTensorMode.__module__)
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


def _has_effects(node: fx.Node) -> bool:
    """Whether running a node, even on fake tensors, would change something."""
    return bool(t.mutated_arguments(node)) or node.target is torch.ops.higher_order.with_effects


def _val(node: fx.Node) -> Any:
    if "val" in node.meta:
        return node.meta["val"]
    owner = node.graph.owning_module
    if node.op == "get_attr" and owner is not None:
        return attrgetter(str(node.target))(owner)
    raise Unknown


def set_val(node: fx.Node, val: Any) -> None:
    """Write a value to a node, whose ``meta`` may be shared with the node of another graph: it gets its own."""
    node.meta = {**node.meta, "val": val}
    node.meta.pop("tensor_meta", None)


def recompute(nodes: Iterable[fx.Node], mode: Mode | None) -> None:
    """Compute the values of nodes anew, and of all that follows from those that come out different.

    Raises:
        EditError: if an operator does not work on the values of its arguments. All values then stay as they were.
    """
    queue = [node for node in nodes if not node._erased]
    heapify(queue)
    before: dict[fx.Node, dict[str, Any]] = {}
    while queue:
        node = heappop(queue)
        if node in before or node.op == "output":
            continue
        try:
            val = compute(node, mode)
        except Unknown:
            continue
        except Exception as error:
            for done, meta in before.items():
                done.meta = meta
            raise EditError(does_not_work(node, error)) from error
        old, before[node] = node.meta.get("val"), node.meta
        if is_other(val, old):
            set_val(node, val)
            for user in node.users:
                heappush(queue, user)


def does_not_work(node: fx.Node, error: Exception) -> str:
    """That an operator raised ``error``, for messages."""
    said = str(error).rstrip(".")
    return f"{node.target} does not work on the values of the arguments of {node}: {type(error).__name__}: {said}."


def is_other(one: Any, other: Any) -> bool:
    """Whether a value isn't written as another is: symbolic sizes are other ones even if they may be equal."""
    return _layout(one) != _layout(other)


def is_real(val: Any) -> bool:
    """Whether a value is a tensor with data."""
    return isinstance(val, torch.Tensor) and not isinstance(val, t.FakeTensor)


def _layout(val: Any) -> object:
    """What makes up a value, as something that can be compared."""
    if isinstance(val, (list, tuple)):
        return [*map(_layout, val)]
    if isinstance(val, (torch.SymInt, torch.SymFloat)):
        return val.node.expr
    if not isinstance(val, torch.Tensor):
        return val
    sizes: tuple[Any, ...] = tuple(val.size())
    strides: tuple[Any, ...] = val.stride() if val.layout is torch.strided else ()
    return [val.dtype, val.device, val.layout, *map(_layout, sizes), *map(_layout, strides)]


def difference(one: Any, other: Any) -> str:
    """In what a value surely differs from another: shape, dtype or device, such as ``shape [3] instead of [4]``.

    It is ``""`` where they agree, where symbolic sizes may, and where one of them is ``None``.
    """
    if one is None or other is None:
        return ""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return _tensor_difference(one, other)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(one) != len(other):
            return f"{len(one)} values instead of {len(other)}"
        return next(filter(None, map(difference, one, other)), "")
    tensors = isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor)
    differs = tensors or (_is_number(one) and _is_number(other) and _differ(one, other))
    return f"{_short(one)} instead of {_short(other)}" if differs else ""


def _tensor_difference(one: torch.Tensor, other: torch.Tensor) -> str:
    if one.dim() != other.dim() or any(map(_differ, one.size(), other.size())):
        return f"shape {[*one.size()]} instead of {[*other.size()]}"
    for what in ("dtype", "device"):
        if getattr(one, what) != getattr(other, what):
            return f"{what} {getattr(one, what)} instead of {getattr(other, what)}"
    return ""


def stride_difference(one: Any, other: Any) -> str:
    """In what strides a value surely differs from another of the same shape; ``""`` where it doesn't."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return next(filter(None, map(stride_difference, one, other)), "")
    tensors = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    if not tensors or one.layout is not torch.strided or other.layout is not torch.strided:
        return ""
    differs = any(map(_differ, one.stride(), other.stride()))
    return f"strides {[*one.stride()]} instead of {[*other.stride()]}" if differs else ""


def _is_number(val: object) -> bool:
    return isinstance(val, (int, float, torch.SymInt, torch.SymFloat))


def _differ(one: Any, other: Any) -> bool:
    """Whether two numbers surely differ; symbolic ones are not guarded on."""
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return one != other
    one, other = (number if isinstance(number, (int, float)) else number.node.expr for number in (one, other))
    return (one - other).is_zero is False


def _short(val: object) -> str:
    return "a tensor" if isinstance(val, torch.Tensor) else repr(val)
