"""Steps that change a graph and its descriptors together, each of which is done whole or refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, cast

from torch import fx

from jointgraph import _torch as t
from jointgraph import fake_values
from jointgraph.check import errors
from jointgraph.descriptors import GraphKind, InputKind, base_of
from jointgraph.exceptions import EditError, listed
from jointgraph.interface import Interface
from jointgraph.leaves import Leaf
from jointgraph.records import Input, Output
from jointgraph.rewriter import Rewriter, Value, is_output
from jointgraph.slot_plans import check_not_saved, renamed, with_inputs, with_outputs, without

_TOLD_BY_NAME = ("tangents", "fwd_seed", "fwd_base_offset", "bwd_seed", "bwd_base_offset")
"""What torch's partitioners look for in a placeholder's name."""
_ARGUMENTS = ("self", "primals", "tangents")
"""What the function is called with that FX makes of a joint graph."""
_ONLY_ASKS = "A reading() block only asks: leave it before you edit."


class Edit:
    """A block of steps: ``with index.edit() as edit: edit.wrap(...)``.

    Each step checks everything, then changes the graph, its descriptors and the values in ``meta["val"]``; a step that
    is refused has changed nothing. Between steps the index answers from the graph as it then is, and plain FX calls may
    edit it, too. On leaving the block, values that follow from changed ones are computed anew under the graph's own
    fake mode, the graph is checked and linted, and its module is recompiled.

    A ``JointWithDescriptors`` is compiled for the inputs and outputs that were captured. A graph with some added or
    removed can be called and partitioned, but ``aot_compile_joint_with_descriptors`` can't follow:
    ``index.check(joint)`` says what it would mistake.
    """

    def __init__(self, interface: Interface, module: fx.GraphModule | None) -> None:
        self._interface = interface
        self._graph = interface.graph
        self._module = module
        self._rewriter = Rewriter(interface)
        self._steps: list[str] | None = None
        """What was done in the block; ``None`` outside it."""
        self._in_step = False
        """Whether a pass's own function is building nodes."""

    def __enter__(self) -> Edit:  # noqa: PYI034  # typing.Self is new in Python 3.11.
        """Begin.

        Raises:
            EditError: inside a ``reading()`` block, or if the block has begun already.
        """
        if self._interface.is_reading:
            raise EditError(_ONLY_ASKS)
        if self._steps is not None:
            raise EditError("This block has begun already: call index.edit() for another.")
        self._steps = []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Bring values up to date, check, lint and recompile; after an exception only say what was done.

        Raises:
            EditError: if the graph as it now is breaks a rule. All steps stand.
        """
        steps, self._steps = self._steps or [], None
        if error is None:
            self._finish()
            return
        done = f"These steps were done, and stand: {'; '.join(steps)}." if steps else "No step was done."
        note = f"{done} The graph has not been checked, nor its module recompiled."
        error.__notes__ = [*getattr(error, "__notes__", ()), note]  # add_note() is of Python 3.11.

    def wrap(self, what: Value | Iterable[Value], fn: Callable[[fx.Node], fx.Node]) -> None:
        """Put nodes between an input and all that reads it, or between an output's value and the output list.

        ``fn`` gets the node, adds nodes to its graph by ``node.graph.call_function(...)`` and returns the one to use
        instead: an all-gather after a parameter, a reduce-scatter before a gradient, a cast. They are placed right
        after the node, or behind the last of what else they read, and get ``meta["val"]``. Of an output, only this slot
        changes, even if its node fills others. Operators that write to an input (``copy_``) keep it as their target. An
        input that nothing reads is left alone.

        FX writes the whole output list anew for a change in it: give many outputs at once, not one by one.

        Args:
            what: an input, an output, a leaf of either, or several of these.
            fn: builds the nodes on one of them.

        Raises:
            EditError: if one of them can't be wrapped, or ``fn`` builds what can't stand there.
            SubclassError: if a value has several leaves: wrap these.
        """
        self._begin_step()
        values = [what] if isinstance(what, (Input, Output, Leaf)) else list(what)
        nodes = [self._rewriter.placeholder(value) for value in values if not is_output(value)]
        places = [self._rewriter.place(value) for value in values if is_output(value)]
        if len({*nodes}) + len({*places}) < len(values):
            raise EditError("A value is to be wrapped twice in one step: name it once.")
        for value in values:
            check_not_saved(value)
        self._in_step = True
        try:
            self._rewriter.wrap(nodes, places, fn)
        finally:
            self._in_step = False
        self._did(f"wrap {values[0]!r}" if len(values) == 1 else f"wrap {len(values)} values")

    def replace(self, output: Output | Leaf[fx.Node | None], node: fx.Node | None) -> None:
        """Return another node in an output's slot, or ``None``: a gradient is then missing.

        Raises:
            EditError: if the node is of another graph, or erased, or the output node itself.
            SubclassError: if the output has several leaves: replace these.
        """
        self._begin_step()
        if not is_output(output):
            raise EditError(f"{output!r} is an input: wrap() puts nodes behind it, set_val() gives it another value.")
        place = self._rewriter.place(output)
        check_not_saved(output)
        self._rewriter.check_node(node)
        self._rewriter.write({place: node})
        self._did(f"replace {output!r}")

    def add_input(self, desc: t.AOTInput, val: Any, *, after: Input | None = None) -> Input:
        """Add a placeholder; see `add_inputs`."""
        return self.add_inputs({desc: val}, after=after)[0]

    def add_inputs(self, vals: Mapping[t.AOTInput, Any], *, after: Input | None = None) -> tuple[Input, ...]:
        """Add placeholders.

        Each goes behind the last input of its kind, or all after the one that is named. Where the output list of a
        joint graph has a place for the gradient of every input, a new input gets one, which is empty. Placeholders are
        named ``primals_*`` or ``tangents_*``, by which torch's partitioners tell them apart.

        Costs a reading of all slots: add many at once, not one by one.

        Args:
            vals: descriptor → ``meta["val"]``. A leaf of a tensor subclass has a descriptor with layers. A real tensor
                is made fake under the graph's fake mode, of static shape.
            after: the input behind which to put them.

        Raises:
            EditError: if the graph would break a rule: it has such an input, say, or not the output of this tangent.
        """
        self._begin_step()
        fake = {desc: self._fake(val) for desc, val in vals.items()}
        self._rewriter.adopt(*with_inputs(self._rewriter, self._interface, fake, after))
        self._did(f"add input{'s' if len(vals) > 1 else ''} {', '.join(map(str, vals))}")
        return cast(tuple[Input, ...], self._records(vals))

    def add_output(self, node: fx.Node | None, desc: t.AOTOutput, *, after: Output | None = None) -> Output:
        """Return one value more; see `add_outputs`."""
        return self.add_outputs({desc: node}, after=after)[0]

    def add_outputs(
        self, nodes: Mapping[t.AOTOutput, fx.Node | None], *, after: Output | None = None
    ) -> tuple[Output, ...]:
        """Return more values.

        Each goes behind the last output of its kind, or all after the one that is named. A gradient goes into the place
        that the output list keeps for the gradient of its input, where it does: the list is then as long as before.

        Costs a reading of all slots: add many at once, not one by one.

        Args:
            nodes: descriptor → what to return. A leaf of a tensor subclass has a descriptor with layers.
            after: the output behind which to put them.

        Raises:
            EditError: if the graph would break a rule: it has such an output, say, or not the input of this gradient;
                or if a node can't be returned.
        """
        self._begin_step()
        self._rewriter.adopt(*with_outputs(self._rewriter, self._interface, nodes, after))
        self._did(f"add output{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}")
        return cast(tuple[Output, ...], self._records(nodes))

    def remove(self, what: Input | Output | Iterable[Input | Output]) -> None:
        """Take inputs and outputs out of the calling convention, each with all its slots.

        The place that the output list keeps for the gradient of an input stays when the gradient is removed, and goes
        with its input.

        Costs a reading of all slots: remove many at once, not one by one.

        Args:
            what: an input or an output, or several.

        Raises:
            EditError: if nodes read an input, or it has a gradient or a new value, or an output has a tangent, that are
                not removed with it.
        """
        self._begin_step()
        records = [what] if isinstance(what, (Input, Output, Leaf)) else list(what)
        for record in records:
            if isinstance(record, Leaf):
                raise EditError(f"{record!r} is a part of a value: remove the whole, or replace() what is in its slot.")
            self._rewriter.check_own(record)
            check_not_saved(record)
        described = ", ".join(map(repr, records))
        self._rewriter.adopt(*without(self._rewriter, self._interface, records))
        self._did(f"remove {described}")

    def set_val(self, what: Input | Leaf[fx.Node], val: Any) -> None:
        """Have an input be of another shape, dtype or device.

        Values that follow from it are computed anew when the block is left.

        Args:
            what: an input, or a leaf of one.
            val: its new ``meta["val"]``; a real tensor is made fake under the graph's fake mode, of static shape.

        Raises:
            EditError: for an output, whose value follows from what computes it.
            SubclassError: if the input has several leaves: set these.
        """
        self._begin_step()
        if is_output(what):
            raise EditError(f"The val of {what!r} follows from what computes it: change that, or wrap() the output.")
        self._rewriter.set_val(self._rewriter.placeholder(what), self._fake(val))
        self._did(f"set the val of {what!r}")

    def rename(self, names: Mapping[str, str]) -> None:
        """Give parameters and buffers other fully qualified names, in every descriptor that mentions them.

        Args:
            names: old name → new name.

        Raises:
            UnknownNameError: for an old name that the graph doesn't have.
            EditError: if two would have the same name.
        """
        self._begin_step()
        self._rewriter.adopt(*renamed(self._rewriter, names))
        self._did(f"rename {', '.join(names)}")

    def name_nodes(self) -> None:
        """Name the placeholders of parameters and buffers by their fully qualified names, for the printed code.

        ``layers.0.weight`` becomes ``layers_0_weight``, or that with a number where the name is taken. A name that
        means something else to torch is not given: ``self``, and all by which partitioners know tangents and seeds.

        Raises:
            EditError: in a forward or a backward graph, which belong together by the names of their nodes.
        """
        self._begin_step()
        scan = self._rewriter.scan()
        if scan.kind in {GraphKind.FORWARD, GraphKind.BACKWARD}:
            raise EditError("The halves of a partitioned graph belong together by node names: name the joint graph's.")
        for record in self._interface.inputs(InputKind.PARAM, InputKind.BUFFER):
            for path, leaf in record.leaves.items():
                name = re.sub(r"\W", "_", ".".join(filter(None, [record.name, path])))
                if name not in _ARGUMENTS and not any(word in name for word in _TOLD_BY_NAME):
                    leaf.node._rename(name)
                    leaf.node.target = leaf.node.name
        self._did("name nodes")

    def _begin_step(self) -> None:
        if self._steps is None:
            raise EditError("Steps are done inside the block: with index.edit() as edit: ...")
        if self._in_step:
            raise EditError("A step is under way: build nodes in its function, and do the next step after it.")
        if self._interface.is_reading:
            raise EditError(_ONLY_ASKS)

    def _did(self, step: str) -> None:
        cast(list[str], self._steps).append(step)

    def _records(self, descs: Iterable[t.AOTInput | t.AOTOutput]) -> tuple[Input | Output | None, ...]:
        self._interface.verify()
        return tuple(self._interface.record(base_of(desc)) for desc in descs)

    def _fake(self, val: Any) -> Any:
        try:
            return fake_values.as_fake(val, self._rewriter.mode)
        except fake_values.Unknown:
            raise EditError(
                "The symbolic sizes of this val are of another fake mode: make it under the graph's own, that of the "
                "val of any of its inputs."
            ) from None

    def _finish(self) -> None:
        stand = "All steps stand. The module has not been recompiled"
        try:
            self._rewriter.refresh_values()
        except EditError as error:
            raise EditError(
                f"{error} {stand}, and the values that follow from changed ones are as they were. Change what doesn't "
                "fit, and leave another edit() block."
            ) from error
        found = errors(self._interface)
        if found:
            raise EditError(f"The edited graph breaks a rule {listed(found)}\n{stand}.", found)
        try:
            self._graph.lint()
        except (RuntimeError, ValueError, AssertionError) as error:
            raise EditError(f"FX finds fault with the edited graph: {error} {stand}.") from error
        if self._module is not None:
            self._module.recompile()
