"""The things that hold a joint graph: the graph itself, a graph module, torch's ``JointWithDescriptors``."""

from typing import Protocol

from torch import fx


class HasGraphModule(Protocol):
    """What holds a joint graph module, as torch's ``JointWithDescriptors`` does."""

    @property
    def graph_module(self) -> fx.GraphModule:
        """The graph module."""


Holder = fx.Graph | fx.GraphModule | HasGraphModule


def module_of(holder: Holder) -> fx.GraphModule | None:
    """The graph module in a holder; the one that owns a bare graph, if one does."""
    held: object = getattr(holder, "graph_module", holder)
    return held if isinstance(held, fx.GraphModule) else getattr(holder, "owning_module", None)


def graph_of(holder: Holder) -> fx.Graph:
    """The graph in a holder.

    Raises:
        TypeError: if it is none.
    """
    held: object = getattr(holder, "graph_module", holder)
    held = held.graph if isinstance(held, fx.GraphModule) else held
    if isinstance(held, fx.Graph):
        return held
    name = type(holder).__name__
    raise TypeError(f"A joint graph comes as an fx.Graph, an fx.GraphModule or a JointWithDescriptors, not {name}.")
