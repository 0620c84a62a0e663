"""Steps that change a graph and its descriptors together, each of which is done whole or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import TracebackType
from typing import Any, TypeVar, cast

from torch import fx

from jointgraph import _torch as t
from jointgraph import fake_values
from jointgraph.check import errors
from jointgraph.descriptors import GraphKind, InputKind, SavedForBackwardsAOTInput, base_of, name_of
from jointgraph.exceptions import EditError, listed
from jointgraph.interface import Interface
from jointgraph.layout import gap_for, grad_places, place_for
from jointgraph.leaves import Leaf
from jointgraph.missing import unknown
from jointgraph.records import Input, Output
from jointgraph.rewriter import Rewriter, Value, is_output
from jointgraph.scan import Scan

Desc = TypeVar("Desc", t.AOTInput, t.AOTOutput)

_TOLD_BY_NAME = ("tangents", "fwd_seed", "fwd_base_offset", "bwd_seed", "bwd_base_offset")
"""What torch's partitioners look for in a placeholder's name."""


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

    def __enter__(self) -> Edit:  # noqa: PYI034  # typing.Self is new in Python 3.11.
        """Begin.

        Raises:
            EditError: inside a ``reading()`` block, or if the block has begun already.
        """
        if self._interface.is_reading:
            raise EditError("A reading() block only asks: leave it before you edit.")
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
        self._rewriter.wrap(nodes, places, fn)
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
        self._rewriter.check_node(node)
        self._rewriter.write({place: node})
        self._did(f"replace {output!r}")

    def add_input(self, desc: t.AOTInput, val: Any, *, after: Input | None = None) -> Input:
        """Add a placeholder.

        It goes behind the last input of its kind, or after the one that is named. Where the output list of a joint
        graph has a place for the gradient of every input, the new input gets one, which is empty. The placeholder is
        named ``primals_*`` or ``tangents_*``, by which torch's partitioners tell them apart.

        Args:
            desc: its descriptor; of a leaf of a tensor subclass, with its layers.
            val: its ``meta["val"]``; a real tensor is made fake under the graph's fake mode, of static shape.
            after: the input behind which to put it.

        Raises:
            EditError: if the graph would break a rule: it has such an input, say, or not the output of this tangent.
        """
        self._begin_step()
        scan, kind = self._scan_for_new(desc), self._interface.kind_of(base_of(desc))
        position = place_for(scan.inputs, desc, kind) if after is None else self._rewriter.behind(after)
        gap = gap_for(scan, desc, position)
        inputs, outputs = self._rewriter.slots()
        inputs.insert(position, (fx.Graph().placeholder("new_input"), desc))
        if gap is not None:
            outputs.insert(gap, (None, None))
        self._rewriter.check_plan(inputs, outputs)
        self._rewriter.insert_placeholder(position, desc, fake_values.as_fake(val, self._rewriter.mode))
        if gap is not None:
            self._rewriter.splice(gap, 0, [(None, None)])
        self._did(f"add input {desc}")
        return cast(Input, self._record(desc))

    def add_output(self, node: fx.Node | None, desc: t.AOTOutput, *, after: Output | None = None) -> Output:
        """Return one value more.

        It goes behind the last output of its kind, or after the one that is named. A gradient goes into the place that
        the output list keeps for the gradient of its input, where it does: the list is then as long as before.

        Args:
            node: what to return.
            desc: its descriptor; of a leaf of a tensor subclass, with its layers.
            after: the output behind which to put it.

        Raises:
            EditError: if the graph would break a rule: it has such an output, say, or not the input of this gradient;
                or if the node can't be returned.
        """
        self._begin_step()
        scan, kind = self._scan_for_new(desc), self._interface.kind_of(base_of(desc))
        self._rewriter.check_node(node)
        position = _kept_place(scan, desc) if after is None else None
        filled = 0 if position is None else 1
        if position is None:
            position = place_for(scan.outputs, desc, kind) if after is None else self._rewriter.behind(after)
        inputs, outputs = self._rewriter.slots()
        outputs[position : position + filled] = [(node, desc)]
        self._rewriter.check_plan(inputs, outputs)
        self._rewriter.splice(position, filled, [(node, desc)])
        self._did(f"add output {desc}")
        return cast(Output, self._record(desc))

    def remove(self, record: Input | Output) -> None:
        """Take an input or an output out of the calling convention, with all its slots.

        The place that the output list keeps for the gradient of an input stays when the gradient is removed, and goes
        with its input.

        Raises:
            EditError: if nodes read the input, or it has a gradient or a new value, or the output has a tangent: these
                go first.
        """
        self._begin_step()
        if isinstance(record, Leaf):
            raise EditError(f"{record!r} is a part of a value: remove the whole, or replace() what is in its slot.")
        self._rewriter.check_own(record)
        described = repr(record)
        self._remove_input(record) if isinstance(record, Input) else self._remove_output(record)
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
        node = self._rewriter.placeholder(what)
        fake_values.set_val(node, fake_values.as_fake(val, self._rewriter.mode))
        self._rewriter.stale.update(node.users)
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
        scan = self._rewriter.scan()
        named = {
            name_of(scan.inputs.descs[number]): scan.inputs.descs[number]
            for number in scan.inputs.of_kinds((InputKind.PARAM, InputKind.BUFFER))
        }
        for name in names:
            if name not in named:
                raise unknown(name, "params and buffers", named, ())
        kept = named.keys() - names.keys()
        clash = next((new for new in names.values() if new in kept or [*names.values()].count(new) > 1), None)
        if clash is not None:
            raise EditError(f"Two parameters or buffers would be named {clash!r}: give each its own name.")
        new = {named[old]: replace(cast(Any, named[old]), target=name) for old, name in names.items()}
        inputs, outputs = self._rewriter.slots()
        described = [(node, _renamed(desc, new)) for node, desc in inputs]
        outputs = [(entry, desc and _renamed(desc, new)) for entry, desc in outputs]
        self._rewriter.check_plan(described, outputs)
        for (node, desc), (_, old) in zip(described, inputs):
            if desc != old:
                node.meta = {**node.meta, "desc": desc}
        self._rewriter.describe([desc for _, desc in outputs])
        self._did(f"rename {', '.join(names)}")

    def name_nodes(self) -> None:
        """Name the placeholders of parameters and buffers by their fully qualified names, for the printed code.

        ``layers.0.weight`` becomes ``layers_0_weight``, or that with a number where the name is taken. A name by which
        torch's partitioners would take the node for a tangent or a seed is not given.

        Raises:
            EditError: in a forward or a backward graph, which belong together by the names of their nodes.
        """
        self._begin_step()
        scan = self._rewriter.scan()
        if scan.kind in {GraphKind.FORWARD, GraphKind.BACKWARD}:
            raise EditError("The halves of a partitioned graph belong together by node names: name the joint graph's.")
        for record in self._interface.inputs(InputKind.PARAM, InputKind.BUFFER):
            for path, leaf in record.leaves.items():
                name = ".".join(filter(None, [record.name, path]))
                if not any(word in name for word in _TOLD_BY_NAME):
                    leaf.node._rename(name)
                    leaf.node.target = leaf.node.name
        self._did("name nodes")

    def _begin_step(self) -> None:
        if self._steps is None:
            raise EditError("Steps are done inside the block: with index.edit() as edit: ...")

    def _did(self, step: str) -> None:
        cast(list[str], self._steps).append(step)

    def _record(self, desc: t.AOTInput | t.AOTOutput) -> Input | Output | None:
        self._interface.verify()
        return self._interface.record(base_of(desc))

    def _scan_for_new(self, desc: t.AOTInput | t.AOTOutput) -> Scan:
        """The graph's reading, to which a slot of this descriptor may be added."""
        scan, base = self._rewriter.scan(), base_of(desc)
        if isinstance(base, SavedForBackwardsAOTInput):
            raise EditError("Torch describes no saved activation: partition the joint graph anew to save another.")
        if not self._interface.keeps(base):
            raise EditError(f"This index leaves out what has the descriptor {base}: edit through one that keeps it.")
        return scan

    def _remove_input(self, record: Input) -> None:
        scan, desc, nodes = self._rewriter.scan(), record.desc, record.nodes
        readers = [user for node in nodes for user in node.users]
        if readers:
            some = ", ".join(map(str, readers[:3]))
            raise EditError(f"{record!r} is read by {some}: give them something else first.")
        if record.mutation is not None:
            raise EditError(f"{record!r} has a new value, {record.mutation!r}: remove that first.")
        number = scan.inputs.number[desc]
        places: Sequence[int] = ()
        if record.grad is None:  # One that is returned must go first.
            grad = scan.grads[number]
            places = grad_places(scan).get(number, () if grad is None else scan.outputs.positions[grad])
        inputs, outputs = self._rewriter.slots()
        self._rewriter.check_plan(
            [slot for slot in inputs if slot[0] not in nodes],
            [slot for position, slot in enumerate(outputs) if position not in places],
        )
        self._rewriter.erase_placeholders(nodes)
        for place in reversed(places):
            self._rewriter.splice(place, 1, [])

    def _remove_output(self, record: Output) -> None:
        scan, desc = self._rewriter.scan(), record.desc
        if record.tangent is not None:
            raise EditError(f"{record!r} has a tangent, {record.tangent!r}: remove that first.")
        owner = desc.grad_of if isinstance(desc, t.GradAOTOutput) else None
        places = scan.outputs.positions[scan.outputs.number[desc]]
        keeps = owner in scan.inputs.number and scan.inputs.number[owner] in grad_places(scan)
        inputs, outputs = self._rewriter.slots()
        left = [(None, None) if keeps and at == places[0] else slot for at, slot in enumerate(outputs)]
        self._rewriter.check_plan(inputs, [slot for at, slot in enumerate(left) if at not in places[keeps:]])
        for place in reversed(places[1:]):
            self._rewriter.splice(place, 1, [])
        self._rewriter.splice(places[0], 1, [(None, None)] if keeps else [])

    def _finish(self) -> None:
        self._rewriter.refresh_values()
        found = errors(self._interface)
        if found:
            raise EditError(
                f"The edited graph breaks a rule {listed(found)}\nAll steps stand. Its module has not been recompiled.",
                found,
            )
        self._graph.lint()
        if self._module is not None:
            self._module.recompile()


def _kept_place(scan: Scan, desc: t.AOTOutput) -> int | None:
    """The undescribed place that the output list keeps for this gradient, if it does."""
    base = base_of(desc)
    number = scan.inputs.number.get(base.grad_of) if isinstance(base, t.GradAOTOutput) else None
    if number is None or scan.grads[number] is not None or number not in grad_places(scan):
        return None
    return grad_places(scan)[number][0]


def _renamed(desc: Any, names: Mapping[Any, Any]) -> Any:
    """A descriptor with each one in it that has another name in ``names`` replaced."""
    if desc in names:
        return names[desc]
    inner = {field.name: getattr(desc, field.name) for field in fields(desc)} if is_dataclass(desc) else {}
    changed = {name: _renamed(one, names) for name, one in inner.items() if isinstance(one, (t.AOTInput, t.AOTOutput))}
    return replace(desc, **changed) if changed else desc
