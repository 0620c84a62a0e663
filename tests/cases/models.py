"""Small models and arguments that several families of cases use."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

X = torch.randn(2, 3)


class Fn(nn.Module):
    """A parameter ``w``, and a function of it and the arguments."""

    def __init__(self, function: Callable[..., Any], w: torch.Tensor | None = None) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3) if w is None else w)
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self.w, *args, **kwargs)


def multiply(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return x * w


class WithBuffer(nn.Module):
    """A parameter ``w``, a buffer ``b``, and a function of the two and the arguments."""

    def __init__(self, function: Callable[..., Any], b: torch.Tensor | None = None) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3))
        self.register_buffer("b", torch.ones(3) if b is None else b)
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(self.w, self.b, *args)


def wants_grad(*shape: int) -> torch.Tensor:
    """A tensor that wants a gradient."""
    return torch.randn(*shape, requires_grad=True)


def two(*shape: int, requires_grad: bool = False) -> torch.Tensor:
    """A tensor subclass with the leaves ``a`` and ``b``."""
    return twice(torch.randn(*shape), torch.randn(*shape)).requires_grad_(requires_grad)


def twice(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A tensor subclass with these leaves."""
    return TwoTensor(a, b)  # type: ignore[no-untyped-call]  # torch's test class
