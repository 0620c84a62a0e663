"""Why an index has no record of a name or a descriptor, and what to ask for instead."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import cast

import attrs
from torch import fx, nn

from jointgraph import _torch as t
from jointgraph.descriptors import GraphKind, InputKind, name_of
from jointgraph.exceptions import UnknownNameError
from jointgraph.holders import Holder
from jointgraph.interface import Interface
from jointgraph.records import Input
from jointgraph.scan import Values


@attrs.frozen(eq=False, slots=False)  # A cached property needs a __dict__.
class Origin:
    """What is known of where a graph was captured from."""

    module: nn.Module | None
    """The captured module."""
    holder: Holder
    """What the graph came in: a ``JointWithDescriptors`` knows its arguments."""

    def arguments(self) -> Mapping[t.AOTInput, t.AOTInput] | None:
        """Every argument of the captured module → the input that carries it, where that is known."""
        return t.captured_arguments(self.holder)

    captured: Values[t.AOTInput, InputKind]
    """The inputs that the graph had when it was indexed."""

    def tied(self, desc: t.AOTInput) -> Sequence[str]:
        """The other names that the module has for a parameter or buffer; ``()`` if the graph had it itself."""
        if self.module is None or desc in self.captured.number:
            return ()
        return [name for name in self._names.get(name_of(desc), ()) if name != name_of(desc)]

    @cached_property
    def _names(self) -> Mapping[str, Sequence[str]]:
        """Every name of a parameter or buffer of the module → all names of the same tensor."""
        names: defaultdict[int, list[str]] = defaultdict(list)
        for name, tensor in _tensors(cast(nn.Module, self.module)):
            names[id(tensor)].append(name)
        return {name: group for group in names.values() for name in group}


def _tensors(module: nn.Module) -> Iterable[tuple[str, object]]:
    """Every parameter and buffer of a module, under each of its names."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def unknown(key: object, title: str, known: Iterable[object], hints: Sequence[str]) -> UnknownNameError:
    """The error for a ``key`` that a view has no record of.

    Args:
        key: what was asked for.
        title: the view's name.
        known: the view's keys.
        hints: sentences that say where the value may have gone.
    """
    by_text = {str(one): one for one in known}
    matches = [by_text[text] for text in get_close_matches(str(key), by_text, n=3, cutoff=0.6)]
    if matches:
        offer = f" Did you mean {' or '.join(map(repr, matches))}?"
    elif by_text:
        some = ", ".join(repr(one) for one in list(by_text.values())[:5])
        offer = f" There {'is' if len(by_text) == 1 else 'are'} {some}{', ...' if len(by_text) > 5 else ''}."
    else:
        offer = f" The graph has no {title} at all."
    return UnknownNameError(" ".join([f"{key!r} is not in {title}.{offer}", *hints]), key, matches)


def why_missing(desc: t.AOTInput, interface: Interface, origin: Origin) -> str:
    """Why the graph has no input of this descriptor, as far as the graph and its module tell; ``""`` if they don't."""
    if interface.leaves_out(desc):
        return "The graph has it, but keeps_input() of this index leaves it out."
    arguments = origin.arguments()
    bases = interface.inputs(InputKind.VIEW_BASE, InputKind.SYNTHETIC_BASE)
    if arguments is None:
        carrier = next((base._desc for base in bases if getattr(base._desc, "base_of", None) == desc), None)
    else:
        carrier = arguments.get(desc)
    if isinstance(carrier, (t.ViewBaseAOTInput, t.SyntheticBaseAOTInput)):
        return f"AOTAutograd replaced it, a view, by the base that it shares with others: index[{carrier}]."
    if carrier is not None and carrier != desc:
        where = (
            "which keeps_input() of this index leaves out" if interface.leaves_out(carrier) else "which the graph has"
        )
        return f"AOTAutograd deduplicated it: it is the same tensor as {carrier}, {where}."
    if carrier is not None or desc in origin.captured.number:
        return "The capture had it, so something has removed it from the graph since."
    if interface.scan.kind is GraphKind.BACKWARD:
        return "This is a backward graph, which takes only what it reads: the index of its forward graph may have it."
    perhaps = _perhaps_in(bases) if arguments is None else "The captured module took in no such argument."
    return _why_unnamed(desc, interface.graph, origin) or perhaps


def _why_unnamed(desc: t.AOTInput, graph: fx.Graph, origin: Origin) -> str:
    """What the module, and the constants of the graph, say of a parameter or buffer that is no input."""
    if not isinstance(desc, (t.ParamAOTInput, t.BufferAOTInput)):
        return ""
    constants = [node for node in graph.find_nodes(op="get_attr") if node.target == desc.target]
    if constants:
        return f"It is no input but a constant of the graph, in node {constants[0]}."
    if origin.module is None:
        return ""
    tensor = dict(_tensors(origin.module)).get(desc.target)
    if tensor is None:
        return f"{type(origin.module).__name__} has no parameter or buffer of that name."
    return f"{type(origin.module).__name__} has it, but the traced code does not take it in: it does not use it."


def _perhaps_in(bases: Sequence[Input]) -> str:
    """That a value may be part of a base, of which the graph names one view only."""
    if not bases:
        return ""
    names = " or ".join(f"index[{base._desc}]" for base in bases)
    return f"It may be one of the views that AOTAutograd replaced by their base, {names}."
