"""Random edits of captured graphs, by plain FX and by ``edit()``: the index stays true, the graph computes the same.

After each step a held index must say what a fresh one says, a check must find no error, and running the graph must give
what eager autograd gave, changed as the steps say.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple, cast

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import fx, nn
from torch._functorch._aot_autograd import descriptors as d
from torch.utils import _pytree as pytree

from jointgraph import (
    EditError,
    GradStatus,
    GraphKind,
    Input,
    InputKind,
    JointGraphIndex,
    Output,
    OutputKind,
    Severity,
    StaleIndexError,
    SubclassError,
)
from tests.capture import joint, partition, torchs_own_warnings
from tests.cases.models import two
from tests.graphs import copy_of, entries, set_outputs, snapshot

aten = torch.ops.aten
RTOL, ATOL = 1e-4, 1e-5
"""Single precision: graph and eager mode add up in different orders."""
Desc = d.AOTInput | d.AOTOutput


class Mixed(nn.Module):
    """Trained, frozen and unused parameters, mutated buffers; among the results one twice, ``None`` and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(2))

    def forward(self, x: torch.Tensor) -> tuple[object, ...]:
        y = self.second(self.first(x).relu()) * self.frozen
        return y, y, self.norm(y).square().mean(), None, 5


class Start(NamedTuple):
    """A graph, what to call it with, and what it must return."""

    graph: fx.GraphModule
    arguments: Mapping[d.AOTInput, Any]
    """By slot descriptor; of a saved activation, by the one that the index files it under."""
    results: Mapping[d.AOTOutput, Any]
    """By slot descriptor."""


def flat(index: JointGraphIndex, arguments: Mapping[d.AOTInput, Any]) -> list[Any]:
    """The arguments in placeholder order."""
    leaves = [leaf for record in index.inputs.values() for leaf in record.leaves.values()]
    return [arguments[cast(d.AOTInput, leaf.desc)] for leaf in sorted(leaves, key=lambda leaf: leaf.position)]


def call(index: JointGraphIndex, module: fx.GraphModule, arguments: Mapping[d.AOTInput, Any]) -> dict[d.AOTOutput, Any]:
    """What the compiled module returns, by slot descriptor, called as joint graphs are: with primals and tangents."""
    values = [value.clone() if isinstance(value, torch.Tensor) else value for value in flat(index, arguments)]
    codegen: Any = module.graph._codegen
    info = getattr(codegen, "pytree_info", None)
    called_with = values if info is None else pytree.tree_unflatten(values, info.in_spec)
    module.recompile()
    with torchs_own_warnings():
        returned = pytree.tree_leaves(module(*called_with), is_leaf=lambda one: one is None)
    assert len(returned) == len(entries(module.graph))
    descs = module.graph.output_node().meta["desc"]
    return {desc: value for desc, value in zip(descs, returned, strict=True) if desc is not None}


def started(
    module: fx.GraphModule, results: Mapping[d.AOTOutput, Any] | None, arguments: dict[d.AOTInput, Any]
) -> Start:
    """A start whose results are eager mode's; without these, for a half of a graph, what it returns before any edit."""
    return Start(
        module, arguments, results if results is not None else call(JointGraphIndex(module), module, arguments)
    )


@cache
def starts() -> dict[str, Start]:
    """The graphs to edit."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return {**mixed(), "subclass": subclass()}


def mixed() -> dict[str, Start]:
    """The joint graph of `Mixed`, and its halves."""
    module, x = Mixed(), torch.randn(4, 3)
    captured = joint(module, x)
    eager = copy.deepcopy(module)
    returned = eager(x)
    tangents = [torch.randn_like(returned[idx]) for idx in (0, 1, 2)]
    params = {d.ParamAOTInput(name): param for name, param in eager.named_parameters() if param.requires_grad}
    grads = torch.autograd.grad(returned[:3], [*params.values()], tangents, allow_unused=True)
    results: dict[d.AOTOutput, Any] = {d.PlainAOTOutput(idx): value for idx, value in enumerate(returned)}
    results |= {d.GradAOTOutput(desc): grad for desc, grad in zip(params, grads)}
    results |= {d.InputMutationAOTOutput(d.BufferAOTInput(n)): b for n, b in eager.named_buffers()}
    arguments: dict[d.AOTInput, Any] = {d.ParamAOTInput(name): p for name, p in module.named_parameters()}
    arguments |= {d.BufferAOTInput(name): buffer for name, buffer in module.named_buffers()}
    arguments[d.PlainAOTInput(0)] = x
    arguments |= {d.TangentAOTInput(d.PlainAOTOutput(idx)): tangent for idx, tangent in enumerate(tangents)}
    arguments = {desc: value.detach() for desc, value in arguments.items()}

    halves = partition(captured)
    forward = started(halves.forward, None, arguments)
    carried = zip(entries(halves.forward.graph), halves.forward.graph.output_node().meta["desc"])
    by_name = {node.name: forward.results[desc] for node, desc in carried if isinstance(node, fx.Node)}
    index = JointGraphIndex(halves.backward)
    from_forward = {
        record.desc: by_name[record.name] for record in index.inputs.values() if record.kind is InputKind.SAVED
    }
    return {
        "joint": started(copy_of(captured.graph_module), results, arguments),
        "forward": forward,
        "backward": started(halves.backward, None, arguments | from_forward),
    }


def subclass() -> Start:
    """A linear layer on a tensor subclass of two leaves."""
    module, x = nn.Linear(3, 3), two(2, 3)
    y, tangent = module(x), two(2, 3)
    grads = torch.autograd.grad(y, [*module.parameters()], tangent)
    leaves_in, leaves_out = d.SubclassGetAttrAOTInput, d.SubclassGetAttrAOTOutput
    arguments: dict[d.AOTInput, Any] = {d.ParamAOTInput(name): p.detach() for name, p in module.named_parameters()}
    results: dict[d.AOTOutput, Any] = {}
    tangent_of = d.TangentAOTInput(d.PlainAOTOutput(0))
    for leaf in ("a", "b"):
        arguments |= {
            leaves_in(d.PlainAOTInput(0), leaf): getattr(x, leaf),
            leaves_in(tangent_of, leaf): getattr(tangent, leaf),
        }
        results[leaves_out(d.PlainAOTOutput(0), leaf)] = getattr(y, leaf)
        for (name, _), grad in zip(module.named_parameters(), grads):
            results[leaves_out(d.GradAOTOutput(d.ParamAOTInput(name)), leaf)] = getattr(grad, leaf)
    return started(copy_of(joint(module, x).graph_module), results, arguments)


# What an index says.


def answers(index: JointGraphIndex) -> list[object]:
    """All that an index says of its graph, but for which records say it."""
    views = (
        "inputs",
        "outputs",
        "params",
        "buffers",
        "plain_inputs",
        "plain_outputs",
        "tangents",
        "grads",
        "mutations",
    )
    said: list[object] = [index.kind]
    for view in (*views, "saved"):
        said += [(view, key, answer(record)) for key, record in getattr(index, view).items()]
    for view in ("input_grads", "output_tangents"):
        said += [(view, key, *map(desc_of, pair)) for key, pair in getattr(index, view).items()]
    said.append([[desc_of(record) for record in index.roles(node)] for node in index.graph.nodes])
    return said


def answer(record: Input | Output) -> list[object]:
    """All that a record says."""
    leaves = [(path, leaf.position, leaf.desc, leaf.value) for path, leaf in record.leaves.items()]
    said: list[object] = [record.desc, record.kind, record.name, record.nodes, leaves]
    if len(leaves) == 1:
        said += [record.node, record.position]
    else:
        with pytest.raises(SubclassError):
            _ = record.node
    links = ("grad", "mutation", "tangent_of") if isinstance(record, Input) else ("tangent", "grad_of", "mutated_input")
    said += [desc_of(getattr(record, link)) for link in links]
    if isinstance(record, Input):
        said += [record.grad_status, [*map(desc_of, record.aliases)], record.is_used]
    return said


def desc_of(record: Input | Output | None) -> Desc | None:
    """The descriptor of a record."""
    return None if record is None else record.desc


# What a pass builds.


def negated(node: fx.Node) -> fx.Node:
    """A new node, where the graph's insert point is."""
    return node.graph.call_function(aten.neg.default, (node,))


def unchanged(node: fx.Node) -> fx.Node:
    """The same value by way of two new nodes."""
    return negated(negated(node))


def scaled(factor: float) -> Callable[[fx.Node], fx.Node]:
    """Builds a multiplication."""
    return lambda node: node.graph.call_function(aten.mul.Tensor, (node, factor))


pick = st.integers(0, 10_000)
"""Chooses one of so many as there are."""


class EditMachine(RuleBasedStateMachine):
    """One graph, one index held through all edits of it, and what calling the graph must return."""

    @initialize(name=st.sampled_from(["joint", "subclass", "forward", "backward"]))
    def start(self, name: str) -> None:
        """Takes a copy of a captured graph."""
        start = starts()[name]
        self.module = copy_of(start.graph)
        for node in self.module.graph.nodes:
            node.meta = dict(node.meta)
        self.graph = self.module.graph
        self.index = JointGraphIndex(self.module)
        self.arguments, self.results = dict(start.arguments), dict(start.results)
        self.held: list[Input | Output] = [*self.index.inputs.values(), *self.index.outputs.values()]
        self.count = 0
        answers(self.index)

    # Choosing.

    def one(self, number: int, among: Iterable[Any]) -> Any:
        """One of several, or ``None`` of none."""
        found = list(among)
        return found[number % len(found)] if found else None

    def nodes(self) -> list[fx.Node]:
        """All nodes that may be read."""
        return [node for node in self.graph.nodes if node.op != "output"]

    def slots(self) -> list[Any]:
        """The leaves of all outputs that return a floating-point tensor, and may be edited."""
        records = [record for record in self.index.outputs.values() if record.kind is not OutputKind.SAVED]
        leaves = [leaf for record in records for leaf in record.leaves.values()]
        return [
            leaf
            for leaf in leaves
            if isinstance(self.results[cast(d.AOTOutput, leaf.desc)], torch.Tensor) and leaf.val.is_floating_point()
        ]

    def new_number(self) -> int:
        """The number of a new argument or result."""
        self.count += 1
        return 100 + self.count

    # Plain FX.

    @rule(number=pick)
    def insert(self, number: int) -> None:
        """Puts nodes behind any node."""
        node = self.one(number, [n for n in self.nodes() if isinstance(n.meta.get("val"), torch.Tensor) and n.users])
        if node is not None:
            users = [*node.users]
            with self.graph.inserting_after(node):
                first = self.graph.call_function(aten.neg.default, (node,))
            with self.graph.inserting_after(first):
                second = self.graph.call_function(aten.neg.default, (first,))
            first.meta["val"] = second.meta["val"] = node.meta["val"]
            in_order = [user for user in users if user.op != "output" or user is self.graph.output_node()]
            node.replace_all_uses_with(second, delete_user_cb=in_order.__contains__)

    @rule(number=pick)
    def swap_entry(self, number: int) -> None:
        """Returns another node in an output slot."""
        leaf = self.one(number, self.slots())
        if leaf is not None:
            with self.graph.inserting_after(leaf.node):
                new = scaled(2.0)(leaf.node)
            new.meta["val"] = leaf.node.meta["val"]
            values = entries(self.graph)
            values[leaf.position] = new
            self.graph.output_node().args = (values,)
            self.results[leaf.desc] = self.results[leaf.desc] * 2

    @rule(number=pick)
    def replace_placeholder(self, number: int) -> None:
        """Puts a new placeholder in the place of one."""
        old = self.one(number, [n for n in self.graph.find_nodes(op="placeholder") if "desc" in n.meta])
        if old is not None:
            name = old.name
            with self.graph.inserting_before(old):
                new = self.graph.placeholder(name)
            new.target = new.name
            new.meta = dict(old.meta)
            old.replace_all_uses_with(new)
            self.graph.erase_node(old)

    @rule(number=pick)
    def shuffle_outputs(self, number: int) -> None:
        """Moves the first output of each half to the end of its half."""
        values, descs = entries(self.graph), [*self.graph.output_node().meta["desc"]]
        info = getattr(self.graph._codegen, "pytree_info", None)
        split = info.out_spec.children()[0].num_leaves if info is not None else number % (len(values) + 1)
        order = [
            *range(1, split),
            *range(min(split, 1)),
            *range(split + 1, len(values)),
            *range(split, min(split + 1, len(values))),
        ]
        set_outputs(self.graph, [values[i] for i in order], [descs[i] for i in order])

    @rule()
    def copy_descriptors(self) -> None:
        """Describes everything by equal, other objects."""
        output = self.graph.output_node()
        output.meta["desc"] = copy.deepcopy(output.meta["desc"])
        for node in self.graph.find_nodes(op="placeholder"):
            if "desc" in node.meta:
                node.meta["desc"] = copy.deepcopy(node.meta["desc"])

    @rule()
    def rebuild_output(self) -> None:
        """Erases the output node, and makes another."""
        old = self.graph.output_node()
        returned, meta = old.args[0], old.meta
        self.graph.erase_node(old)
        self.graph.output(returned).meta = meta

    @rule()
    def eliminate_dead_code(self) -> None:
        """Erases what nothing reads."""
        self.graph.eliminate_dead_code()

    # edit().

    @rule(numbers=st.lists(pick, min_size=1, max_size=3))
    def wrap_inputs(self, numbers: list[int]) -> None:
        """Puts nodes behind inputs."""
        leaves = [leaf for record in self.index.inputs.values() for leaf in record.leaves.values()]
        tensors = [leaf for leaf in leaves if isinstance(leaf.val, torch.Tensor)]
        with self.index.edit() as edit:
            edit.wrap({leaf.desc: leaf for leaf in (self.one(n, tensors) for n in numbers)}.values(), unchanged)

    @rule(numbers=st.lists(pick, min_size=1, max_size=3), factor=st.sampled_from([0.5, -1.0, 2.0]))
    def wrap_outputs(self, numbers: list[int], factor: float) -> None:
        """Scales outputs."""
        leaves = {leaf.desc: leaf for leaf in (self.one(n, self.slots()) for n in numbers) if leaf is not None}
        with self.index.edit() as edit:
            edit.wrap(leaves.values(), scaled(factor))
        for desc in leaves:
            self.results[desc] = self.results[desc] * factor

    @rule(number=pick, other=pick)
    def add_an_input_to_an_output(self, number: int, other: int) -> None:
        """Has an output read a new input, which comes after what computes it or before."""
        leaf = self.one(number, self.slots())
        desc, value = d.PlainAOTInput(self.new_number()), torch.randn(())
        if leaf is None:
            return
        with self.index.edit() as edit:
            new = edit.add_input(desc, value, after=self.one(other, [None, *self.index.inputs.values()]))
            edit.wrap(leaf, lambda node: node.graph.call_function(aten.add.Tensor, (node, new.node)))
        self.arguments[desc] = value
        self.results[leaf.desc] = self.results[leaf.desc] + value

    @rule(number=pick, other=pick)
    def replace_output(self, number: int, other: int) -> None:
        """Returns what another output returns."""
        leaf = self.one(number, self.slots())
        alike = [] if leaf is None else [one for one in self.slots() if one.val.shape == leaf.val.shape]
        source = self.one(other, alike)
        if source is not None:
            with self.index.edit() as edit:
                edit.replace(leaf, source.node)
            self.results[leaf.desc] = self.results[source.desc]

    @rule(number=pick)
    def drop_gradient(self, number: int) -> None:
        """Returns ``None`` for a gradient."""
        grad = self.one(number, [grad for grad in self.index.grads.values() if len(grad.leaves) == 1])
        if grad is not None:
            (leaf,) = grad.leaves.values()
            self.results[leaf.desc] = None
            with self.index.edit() as edit:
                edit.replace(leaf, None)

    @rule(number=pick, other=pick)
    def add_output(self, number: int, other: int) -> None:
        """Returns something twice."""
        leaf = self.one(number, self.slots())
        if leaf is not None:
            desc = d.PlainAOTOutput(self.new_number())
            if self.index.kind is GraphKind.BACKWARD:
                self.refused(lambda edit: edit.add_output(leaf.node, desc))
                return
            with self.index.edit() as edit:
                made = edit.add_output(
                    leaf.node, desc, after=self.one(other, [None, None, *self.index.outputs.values()])
                )
            assert made.node is leaf.node
            self.results[desc] = self.results[leaf.desc]

    @precondition(lambda self: self.index.tangents)
    @rule(number=pick)
    def add_gradient(self, number: int) -> None:
        """Gives an input that asked for no gradient one: itself."""
        inputs = [
            one for one in self.index.input_grads if self.index.inputs[one].grad_status is GradStatus.NOT_REQUESTED
        ]
        found = [
            desc for desc in inputs if isinstance(desc, d.DifferentiableAOTInput) and [*self.index[desc].leaves] == [""]
        ]
        desc = self.one(number, [desc for desc in found if isinstance(self.index[desc].val, torch.Tensor)])
        if desc is not None:
            with self.index.edit() as edit:
                edit.add_output(self.index[desc].node, d.GradAOTOutput(desc))
            self.results[d.GradAOTOutput(desc)] = self.arguments[desc]

    @rule(number=pick)
    def remove_output(self, number: int) -> None:
        """Takes any output away; one with a tangent, or that is saved for backward, is refused."""
        record = self.one(number, self.index.outputs.values())
        if record is None:
            return
        descs = [leaf.desc for leaf in record.leaves.values()]
        if record.tangent is not None or record.kind is OutputKind.SAVED:
            self.refused(lambda edit: edit.remove(record))
            return
        with self.index.edit() as edit:
            edit.remove(record)
        for desc in descs:
            del self.results[desc]

    @rule(number=pick)
    def remove_input(self, number: int) -> None:
        """Takes any input away; one that is read, or has a gradient or a new value, is refused."""
        record = self.one(number, self.index.inputs.values())
        if record is None:
            return
        grad = d.GradAOTOutput(record.desc) if isinstance(record.desc, d.DifferentiableAOTInput) else None
        if record.is_used or record.grad is not None or record.mutation is not None:
            self.refused(lambda edit: edit.remove(record))
            return
        with self.index.edit() as edit:
            edit.remove(record)
        if grad is not None:
            self.results.pop(grad, None)

    @rule(number=pick)
    def rename(self, number: int) -> None:
        """Gives a parameter or buffer another name."""
        record = self.one(number, [*self.index.params.values(), *self.index.buffers.values()])
        if record is not None:
            old, name = record.desc, f"renamed.{self.new_number()}"
            new = type(old)(name)
            with self.index.edit() as edit:
                edit.rename({old.target: name})
            assert new in self.index
            self.arguments[new] = self.arguments[old]
            for known in [*self.results]:
                if isinstance(known, (d.GradAOTOutput, d.InputMutationAOTOutput)) and old in vars(known).values():
                    self.results[type(known)(new)] = self.results.pop(known)
                if isinstance(known, d.SubclassGetAttrAOTOutput) and known.base == d.GradAOTOutput(old):
                    self.results[d.SubclassGetAttrAOTOutput(d.GradAOTOutput(new), known.attr)] = self.results.pop(known)

    @rule(number=pick)
    def set_val(self, number: int) -> None:
        """Describes an input's value anew, by a real tensor of the same shape."""
        leaves = [leaf for record in self.index.inputs.values() for leaf in record.leaves.values()]
        leaf = self.one(number, [leaf for leaf in leaves if isinstance(leaf.val, torch.Tensor)])
        if leaf is not None:
            with self.index.edit() as edit:
                edit.set_val(leaf, torch.empty(leaf.val.shape, dtype=leaf.val.dtype))

    @rule()
    def name_nodes(self) -> None:
        """Names placeholders by the names of their parameters."""
        if self.index.kind in {GraphKind.FORWARD, GraphKind.BACKWARD}:
            self.refused(lambda edit: edit.name_nodes())
            return
        with self.index.edit() as edit:
            edit.name_nodes()

    # Refusals.

    def refused(self, step: Callable[[Any], object], error: type[Exception] = EditError) -> None:
        """A step is refused, and leaves no trace."""
        before = snapshot(self.graph)
        with self.index.edit() as edit, pytest.raises(error):
            step(edit)
        assert snapshot(self.graph) == before

    @rule(number=pick)
    def bad_steps(self, number: int) -> None:
        """What can't be done is refused."""
        record = self.one(number, self.index.inputs.values())
        output = self.one(number, self.index.outputs.values())
        strange = fx.Graph().placeholder("strange")
        steps: list[Callable[[Any], object]] = [
            lambda edit: edit.add_input(record.desc, torch.randn(2)),
            lambda edit: edit.add_input(d.TangentAOTInput(d.PlainAOTOutput(999)), torch.randn(2)),
            lambda edit: edit.wrap([record.leaves[path] for path in (*record.leaves, *record.leaves)], unchanged),
        ]
        if output is not None:
            leaf = next(iter(output.leaves.values()))
            steps += [
                lambda edit: edit.add_output(self.nodes()[0], output.desc),
                lambda edit: edit.replace(leaf, strange),
                lambda edit: edit.set_val(leaf, torch.randn(2)),
            ]
        tensor = self.one(number, self.slots())
        if tensor is not None:
            steps += [
                lambda edit: edit.wrap(tensor, lambda node: node),
                lambda edit: edit.wrap(
                    tensor, lambda node: node.graph.call_function(aten.mm.default, (negated(node), node, 3))
                ),
            ]
        if self.index.kind is GraphKind.BACKWARD:
            del steps[1]  # Its output may be the forward graph's.
        self.refused(self.one(number, steps))

    # What must hold.

    @invariant()
    def the_index_is_true(self) -> None:
        """It says what a fresh one says, and so does every record that it gave out, until its value goes."""
        fresh = JointGraphIndex(self.module)
        for record in [*self.held]:
            if record._desc in fresh:
                assert answer(record) == answer(fresh[record._desc])
            else:
                self.held.remove(record)
                with pytest.raises(StaleIndexError):
                    _ = record.desc
        assert answers(self.index) == answers(fresh)

    @invariant()
    def the_graph_is_sound(self) -> None:
        """A check finds no error, and torch's lint neither."""
        assert [str(one) for one in self.index.check() if one.severity is Severity.ERROR] == []
        self.graph.lint()

    @invariant()
    def the_graph_computes_what_it_should(self) -> None:
        """Called as joint graphs are, it returns eager mode's results, changed as the steps say."""
        returned = call(self.index, self.module, self.arguments)
        assert returned.keys() == self.results.keys()
        for desc, value in returned.items():
            torch.testing.assert_close(value, self.results[desc], rtol=RTOL, atol=ATOL, msg=str(desc))


def test_edits() -> None:
    """Two thousand random steps."""
    run_state_machine_as_test(
        EditMachine,
        settings=settings(
            max_examples=80,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        ),
    )
