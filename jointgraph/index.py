"""`JointGraphIndex`: what a pass asks about the inputs and outputs of a graph."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn, TypeVar, overload

import attrs
from torch import fx, nn

from jointgraph import _torch as t
from jointgraph.check import check
from jointgraph.descriptors import INPUT_KINDS, OUTPUT_KINDS, GraphKind, InputKind, OutputKind, is_carried, name_of
from jointgraph.edit import Edit
from jointgraph.exceptions import JointGraphError, StaleIndexError, UnknownNameError
from jointgraph.findings import Finding
from jointgraph.flow import Flow
from jointgraph.holders import Holder, graph_of, module_of
from jointgraph.interface import UNFILTERED, Filters, Interface
from jointgraph.missing import Origin, unknown, why_missing
from jointgraph.pairs import InputGrad, OutputTangent
from jointgraph.records import Input, Output
from jointgraph.views import View

Record = TypeVar("Record", Input, Output)


def _desc(record: Input | Output) -> t.AOTInput | t.AOTOutput:
    return record._desc


def _name(record: Input) -> str:
    return name_of(record._desc)


def _field(name: str) -> Callable[[Input | Output], Any]:
    """Reads a field of a record's descriptor."""

    def read(record: Input | Output) -> Any:
        try:
            return getattr(record._desc, name)
        except AttributeError:
            raise JointGraphError(
                f"{type(record._desc).__name__} was given the kind {record._kind}, but has no field {name!r} to be "
                "filed under. Add that field, or give the class another kind."
            ) from None

    return read


class JointGraphIndex:
    """The inputs and outputs of a graph that AOTAutograd captured, by descriptor, by name and by node.

    Building an index reads the graph's placeholders and its output list once. Views and records are made when first
    asked for, and kept. They show the graph as it is now: they can be held while a pass edits it. The graph is the
    ``fx.Graph`` that the index was built on; a module that is given another graph needs another index.

    Override ``keeps_input`` and ``keeps_output`` in a subclass to narrow every view at once, ``input_kind`` and
    ``output_kind`` to give descriptor classes of your own a kind. All four are asked about base descriptors, and must
    answer by the descriptor alone.
    """

    def __init__(self, graph: Holder, *, module: nn.Module | None = None) -> None:
        """Index a graph.

        Args:
            graph: an FX graph with descriptors, a graph module of one, or the ``JointWithDescriptors`` that
                ``aot_export_joint_with_descriptors`` returns. It is not changed. The last one also knows which
                arguments AOTAutograd merged, so that asking for one of these says where it went.
            module: the module that was captured, for its tied names: in ``params`` and ``buffers``, a name that the
                capture dropped then finds the value under the name that it kept.

        Raises:
            MalformedGraphError: if the graph breaks a rule; it lists all that it breaks. A `MissingDescriptorError` if
                one of these is a missing descriptor.
        """
        self._interface = Interface(graph_of(graph), _overrides(self))
        self._origin = Origin(module, graph, self._interface.scan.inputs)
        self._views: dict[str, View[Any, Any]] = {}
        self._flow = Flow(self._interface)

    def keeps_input(self, desc: t.AOTInput) -> bool:
        """Whether to have the input of this descriptor. One that isn't kept is in no view, and no link leads to it."""
        return True

    def keeps_output(self, desc: t.AOTOutput) -> bool:
        """Whether to have the output of this descriptor. One that isn't kept is in no view, and no link leads to it."""
        return True

    def input_kind(self, desc: t.AOTInput) -> InputKind:
        """The kind of the input of this descriptor: as its class says; ``OTHER`` for an unknown class.

        A kind brings views and links with it: ``PLAIN`` needs a field ``idx`` in the descriptor, ``TANGENT`` a field
        ``output``; ``PARAM`` and ``BUFFER`` are named by a field ``target``, else by ``expr()``.
        """
        return INPUT_KINDS[type(desc)]

    def output_kind(self, desc: t.AOTOutput) -> OutputKind:
        """The kind of the output of this descriptor: as its class says; ``OTHER`` for an unknown class.

        A kind brings views and links with it: ``PLAIN`` needs a field ``idx`` in the descriptor, ``GRAD`` a field
        ``grad_of``, ``INPUT_MUTATION`` a field ``mutated_input``.
        """
        return OUTPUT_KINDS[type(desc)]

    @property
    def graph(self) -> fx.Graph:
        """The graph."""
        return self._interface.graph

    @property
    def kind(self) -> GraphKind:
        """Joint, forward, backward or inference, told from the placeholders and outputs alone."""
        self._interface.verify()
        return self._interface.scan.kind

    @property
    def inputs(self) -> Mapping[t.AOTInput, Input]:
        """Every input value by base descriptor, in placeholder order."""
        return self._input_view("inputs", (), _desc)

    @property
    def outputs(self) -> Mapping[t.AOTOutput, Output]:
        """Every output value that has a descriptor, by base descriptor, in output order."""
        return self._output_view("outputs", (), _desc)

    @property
    def params(self) -> Mapping[str, Input]:
        """The parameters by fully qualified name, in placeholder order (torch: ``get_named_param_nodes``)."""
        return self._input_view("params", (InputKind.PARAM,), _name, also=self._tied(t.ParamAOTInput))

    @property
    def buffers(self) -> Mapping[str, Input]:
        """The buffers by fully qualified name, in placeholder order (torch: ``get_named_buffer_nodes``)."""
        return self._input_view("buffers", (InputKind.BUFFER,), _name, also=self._tied(t.BufferAOTInput))

    @property
    def plain_inputs(self) -> Mapping[int, Input]:
        """The user's flat arguments by their ``idx``, which counts from after the parameters and buffers."""
        return self._input_view("plain_inputs", (InputKind.PLAIN,), _field("idx"))

    @property
    def plain_outputs(self) -> Mapping[int, Output]:
        """The user's flat results by their ``idx``."""
        return self._output_view("plain_outputs", (OutputKind.PLAIN,), _field("idx"))

    @property
    def tangents(self) -> Mapping[t.AOTOutput, Input]:
        """The tangents, by the output that each belongs to."""
        return self._input_view("tangents", (InputKind.TANGENT,), _field("output"))

    @property
    def grads(self) -> Mapping[t.AOTInput, Output]:
        """The gradients that the graph computes, by the input that each belongs to.

        In a backward graph, those inputs may be inputs of the forward graph only.
        """
        return self._output_view("grads", (OutputKind.GRAD,), _field("grad_of"), shows=Output._has_value)

    @property
    def mutations(self) -> Mapping[t.AOTInput, Output]:
        """The new values of mutated inputs, by the input that each belongs to."""
        return self._output_view("mutations", (OutputKind.INPUT_MUTATION,), _field("mutated_input"))

    @property
    def saved(self) -> Mapping[str, Input | Output]:
        """In a forward or a backward graph, what is carried from one to the other, by node name: the same in both.

        In the backward graph these are its activations, and those inputs of the forward graph that it takes as well.
        Looking one up reads all of them.
        """
        return self._view("saved", self._saved, self._interface.verify)

    @property
    def input_grads(self) -> Mapping[t.AOTInput, InputGrad]:
        """Every input but tangents, with its gradient or ``None`` (torch: ``get_all_input_and_grad_nodes``)."""
        return self._input_view(
            "input_grads",
            [kind for kind in InputKind if kind is not InputKind.TANGENT],
            _desc,
            wrap=lambda record: InputGrad(record, record.grad),
        )

    @property
    def output_tangents(self) -> Mapping[t.AOTOutput, OutputTangent]:
        """Every output but gradients, with its tangent or ``None`` (torch: ``get_all_output_and_tangent_nodes``)."""
        return self._output_view(
            "output_tangents",
            [kind for kind in OutputKind if kind is not OutputKind.GRAD],
            _desc,
            wrap=lambda record: OutputTangent(record, record.tangent),
        )

    @property
    def flow(self) -> Flow:
        """What the interior says: forward and backward nodes, what each depends on, what backward keeps alive, ..."""
        return self._flow

    @overload
    def __getitem__(self, desc: t.AOTInput) -> Input: ...
    @overload
    def __getitem__(self, desc: t.AOTOutput) -> Output: ...
    def __getitem__(self, desc: t.AOTInput | t.AOTOutput) -> Input | Output:
        """The record of one base descriptor.

        Raises:
            UnknownNameError: if there is none; it offers close matches and says where the value may have gone.
        """
        return self.outputs[desc] if isinstance(desc, t.AOTOutput) else self.inputs[desc]

    def __contains__(self, desc: object) -> bool:
        """Whether a base descriptor has a record."""
        return desc in self.inputs or desc in self.outputs

    def roles(self, node: fx.Node) -> tuple[Input | Output, ...]:
        """Every record that ``node`` fills a slot of, in slot order; ``()`` for an interior node.

        Constant time for an interior node; for one that is returned, a look at the output list.

        Raises:
            JointGraphError: if the node is of another graph.
        """
        if node.graph is not self.graph:
            raise JointGraphError(
                f"{node} is a node of another graph. A copied or partitioned graph has its own nodes: take one of them."
            )
        return self._interface.roles(node)

    def reading(self) -> AbstractContextManager[None]:
        """A block that only asks: ``with index.reading(): ...`` answers from one reading of the graph.

        Elsewhere, a question about what is absent or about all of a kind looks at every slot first, since the graph may
        have changed; a question about the interior looks at every node. Inside the block that look is left out, which
        makes many such questions faster.

        Raises:
            StaleIndexError: on leaving, if the calling convention changed inside the block; or the interior did, and
                something was asked about that.
        """
        return self._interface.reading()

    def edit(self) -> Edit:
        """A block that changes the graph and its descriptors together: ``with index.edit() as edit: edit.wrap(...)``.

        See `Edit` for the steps.
        """
        module = module_of(self._origin.holder)
        return Edit(self._interface, module if module is not None and module.graph is self.graph else None)

    def check(self, joint: object = None) -> tuple[Finding, ...]:
        """All that is wrong with the graph as it is now, or odd about it; ``()`` where nothing is.

        Reads every node, and runs each operator on fake tensors to see whether ``meta["val"]`` is right: about 0.1 ms a
        node. Nothing is changed.

        Args:
            joint: the ``JointWithDescriptors`` whose graph this is or was made from: the inputs and outputs are then
                also held against what AOTAutograd's runtime wrapper hands over and expects.

        Raises:
            TypeError: if ``joint`` is something else.
            JointGraphError: if ``joint`` is given, and the graph is one of its halves.
        """
        return check(self._interface, joint)

    def refresh(self) -> None:
        """Read the graph again. Questions do so by themselves when they find that the calling convention changed.

        Raises:
            MalformedGraphError: if the graph can't be indexed as it is now; all answers then stay as they were.
        """
        self._interface.refresh()

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled, as the nodes in the records belong to one graph."""
        raise TypeError(f"A {type(self).__name__} belongs to its graph. Copy the graph, and index the copy.")

    def __repr__(self) -> str:
        """The graph's kind, and how many values of which kind it has."""
        name = type(self).__name__
        try:
            return f"<{name} {self.kind.value}: {self._counts()}>"
        except StaleIndexError as error:
            return f"<{name}, out of date: {error}>"

    def _counts(self) -> str:
        params = self.params.values()
        with_grad = f" ({sum(param.grad is not None for param in params)} with grad)" if params else ""
        counts: dict[str, Mapping[Any, Any]] = {
            "buffer": self.buffers,
            "plain input": self.plain_inputs,
            "plain output": self.plain_outputs,
            "tangent": self.tangents,
            "mutation": self.mutations,
            "saved value": self.saved,
        }
        rest = [_counted(len(view), what) for what, view in counts.items() if view]
        return ", ".join([_counted(len(params), "param") + with_grad, *rest])

    def _tied(self, cls: type[t.ParamAOTInput | t.BufferAOTInput]) -> Callable[[Any], Sequence[str]]:
        """Tells the other names of a parameter or buffer."""
        return lambda name: self._origin.tied(cls(name)) if isinstance(name, str) else ()

    def _saved(self) -> dict[str, Input | Output]:
        interface = self._interface
        if interface.scan.kind is GraphKind.FORWARD:
            return {node.name: record for record, node in interface.output_nodes() if record._kind is OutputKind.SAVED}
        if interface.scan.kind is GraphKind.BACKWARD:
            carried = ((r, node) for r, node in interface.input_nodes() if is_carried(r._desc, r._kind))
            return {node.name: record for record, node in carried}
        return {}

    def _input_view(
        self, title: str, kinds: Iterable[InputKind], key: Callable[[Input], Any], **options: Any
    ) -> View[Any, Any]:
        interface = self._interface
        return self._view(
            title,
            lambda: interface.kept(title, lambda: _filed(interface.inputs(*kinds), key, title)),
            interface.verify_inputs,
            **options,
        )

    def _output_view(
        self, title: str, kinds: Iterable[OutputKind], key: Callable[[Output], Any], **options: Any
    ) -> View[Any, Any]:
        interface = self._interface
        return self._view(
            title,
            lambda: interface.kept(title, lambda: _filed(interface.outputs(*kinds), key, title)),
            interface.verify_outputs,
            **options,
        )

    def _view(
        self, title: str, records: Callable[[], Mapping[Any, Any]], verify: Callable[[], None], **options: Any
    ) -> View[Any, Any]:
        """The view of this title, made once."""
        if title not in self._views:
            self._views[title] = View(title, records, verify, lambda key: self._missing(title, key), **options)
        return self._views[title]

    def _missing(self, title: str, key: object) -> UnknownNameError:
        """The error for a key that a view has no record of."""
        hints = [
            f"It is in {other}."
            for other in ("params", "buffers", "inputs", "outputs")
            if other != title and key in getattr(self, other)
        ]
        sought = _SOUGHT[title](key) if title in _SOUGHT else key
        if not hints and isinstance(sought, t.AOTInput):
            hints = [why_missing(sought, self._interface, self._origin)]
        return unknown(key, title, self._views[title], [hint for hint in hints if hint])


_SOUGHT: Mapping[str, Callable[[Any], t.AOTInput]] = {
    "params": t.ParamAOTInput,
    "buffers": t.BufferAOTInput,
    "plain_inputs": t.PlainAOTInput,
}
"""The descriptor that a key of a view stands for, where it is none itself."""


def _overrides(index: JointGraphIndex) -> Filters:
    """The methods that a subclass of the index overrides."""
    cls = type(index)
    if cls is JointGraphIndex:
        return UNFILTERED
    names = [
        field.name
        for field in attrs.fields(Filters)
        if getattr(cls, field.name) is not getattr(JointGraphIndex, field.name)
    ]
    return Filters(**{name: getattr(index, name) for name in names}) if names else UNFILTERED


def _filed(records: Sequence[Record], key: Callable[[Record], Any], title: str) -> dict[Any, Record]:
    """Records by key, which no two may share."""
    filed = {key(record): record for record in records}
    if len(filed) < len(records):
        twice = next(record for record in records if filed[key(record)] is not record)
        raise JointGraphError(
            f"{twice._desc} and {filed[key(twice)]._desc} would both be {title}[{key(twice)!r}]. Give one of them "
            "another kind or name, or ask by descriptor."
        )
    return filed


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
