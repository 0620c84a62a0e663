"""What `index.flow` must say, by definitions that are slow, and know nothing of how it is found: `check_flow`."""

import operator
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import attrs
import torch
from torch import fx
from torch._functorch._aot_autograd import descriptors as d

from jointgraph import (
    Chain,
    ChainStop,
    CrossingRole,
    GraphKind,
    Input,
    InputKind,
    JointGraphIndex,
    Leaf,
    Output,
    OutputKind,
    Phase,
)

_OF_BACKWARD = (
    d.BackwardTokenAOTInput,
    d.BackwardTokenAOTOutput,
    d.PhiloxBackwardSeedAOTInput,
    d.PhiloxBackwardBaseOffsetAOTInput,
    d.PhiloxUpdatedBackwardOffsetAOTOutput,
    d.GradAOTOutput,
)


@attrs.frozen
class Oracle:
    """One graph, with what each node depends on, found by search."""

    index: JointGraphIndex
    before: dict[fx.Node, set[fx.Node]] = attrs.field(init=False)
    """Each node with itself and all that it depends on."""
    forward_ends: set[fx.Node] = attrs.field(init=False)
    """Forward outputs, and effects, that depend on no tangent."""
    backward_ends: set[fx.Node] = attrs.field(init=False)
    """All other outputs and effects."""

    @before.default
    def _before(self) -> dict[fx.Node, set[fx.Node]]:
        return {node: search(node) for node in self.index.graph.nodes}

    @forward_ends.default
    def _forward_ends(self) -> set[fx.Node]:
        if self.index.kind is GraphKind.BACKWARD:
            return set()
        outputs = [output for output in self.index.outputs.values() if not isinstance(output.desc, _OF_BACKWARD)]
        ends = {node for output in outputs for node in output.nodes} | self.effects()
        return {node for node in ends if not self.is_late(node)}

    @backward_ends.default
    def _backward_ends(self) -> set[fx.Node]:
        late = [output for output in self.index.outputs.values() if isinstance(output.desc, _OF_BACKWARD)]
        ends = {node for output in self.index.outputs.values() for node in output.nodes} | self.effects()
        return {node for output in late for node in output.nodes} | (ends - self.forward_ends)

    def effects(self) -> set[fx.Node]:
        """The nodes without which the graph would do something else, and that no output depends on."""
        live = self.before[self.index.graph.output_node()]
        return {
            node
            for node in self.index.graph.nodes
            if node not in live and node.op != "placeholder" and node.is_impure(impure_random=False)
        }

    def is_late(self, node: fx.Node) -> bool:
        """Whether a node depends on an input that only backward has."""
        late = [
            one
            for one in self.index.inputs.values()
            if one.kind is InputKind.TANGENT or isinstance(one.desc, _OF_BACKWARD)
        ]
        return any(placeholder in self.before[node] for one in late for placeholder in one.nodes)

    def phase(self, node: fx.Node) -> Phase:
        """The phase of a node."""
        if self.is_late(node):
            return Phase.BACKWARD
        return Phase.FORWARD if any(node in self.before[end] for end in self.forward_ends) else Phase.FREE

    def sources(self, node: fx.Node) -> list[Input]:
        """The inputs that a node depends on."""
        return [one for one in self.index.inputs.values() if self.before[node].intersection(one.nodes)]

    def sinks(self, node: fx.Node) -> list[Output]:
        """The outputs that depend on a node."""
        outputs = self.index.outputs.values()
        return [one for one in outputs if any(node in self.before[returned] for returned in one.nodes)]

    def boundary(self) -> dict[fx.Node, set[fx.Node]]:
        """The values that cross, with their readers."""
        nodes = list(self.index.graph.nodes)
        if self.index.kind is GraphKind.FORWARD:
            saved = [one for one in self.index.outputs.values() if one.kind is OutputKind.SAVED]
            return {node: set() for one in saved for node in one.nodes}
        forward = {node for node in nodes if self.phase(node) is Phase.FORWARD and node.op != "output"}
        run = set().union(*(self.before[end] for end in self.backward_ends)) - forward
        made = forward | {node for node in nodes if node.op == "placeholder" and not self.is_late(node)}
        parts = {node for node in nodes if is_part_of(node, made)}
        for _ in nodes:  # Parts of parts.
            parts |= {node for node in nodes if is_part_of(node, parts)}
        crossing = {}
        for node in made | parts:
            readers = {user for user in node.users if user in run and user not in parts}
            if node in self.backward_ends - self.effects():
                readers.add(self.index.graph.output_node())
            if readers and node.op != "get_attr":
                crossing[node] = readers
        return crossing


def search(start: fx.Node) -> set[fx.Node]:
    """A node and all that it depends on."""
    found, to_do = {start}, [start]
    while to_do:
        new = [node for node in to_do.pop().all_input_nodes if node not in found]
        found.update(new)
        to_do += new
    return found


def is_part_of(node: fx.Node, made: Iterable[fx.Node]) -> bool:
    """Whether a node takes a part out of one of these, which is no tensor."""
    if node.target is not operator.getitem:
        return False
    whole = node.args[0]
    return isinstance(whole, fx.Node) and whole in made and not isinstance(whole.meta.get("val"), torch.Tensor)


def check_flow(index: JointGraphIndex) -> None:
    """Assert that phases, boundary, sources, sinks and derived sets are as defined, and chains and uses as they say."""
    oracle, flow = Oracle(index), index.flow
    nodes = [node for node in index.graph.nodes if node.op != "output"]
    with index.reading():
        for node in nodes:
            assert flow.phase(node) is oracle.phase(node)
            assert list(flow.sources(node)) == oracle.sources(node)
            assert list(flow.sinks(node)) == oracle.sinks(node)
    for phase, found in zip(Phase, (flow.forward_nodes, flow.backward_nodes, flow.free_nodes), strict=True):
        assert list(found) == [node for node in nodes if oracle.phase(node) is phase]
    _check_boundary(oracle)
    _check_derived(oracle, nodes)
    for record in index.inputs.values():
        for leaf in record.leaves.values():
            _check_chain(index, leaf, forward=True)
    for output in index.outputs.values():
        for output_leaf in output.leaves.values():
            _check_chain(index, output_leaf, forward=False)
    _check_uses(oracle)


def _check_boundary(oracle: Oracle) -> None:
    index = oracle.index
    boundary, expected = index.flow.boundary, oracle.boundary()
    assert [one.node for one in boundary] == [node for node in index.graph.nodes if node in expected]
    saved = {node for one in index.outputs.values() if one.kind is OutputKind.SAVED for node in one.nodes}
    forward = [one for one in index.outputs.values() if not isinstance(one.desc, _OF_BACKWARD)]
    returned = {node for one in forward if one.kind is not OutputKind.SAVED for node in one.nodes}
    for crossing in boundary:
        assert list(crossing.readers) == [node for node in index.graph.nodes if node in expected[crossing.node]]
        assert (crossing.role is CrossingRole.INPUT) == (crossing.node.op == "placeholder")
        if crossing.role is CrossingRole.OUTPUT:
            assert crossing.node in returned
        if crossing.role is CrossingRole.EXTRA:
            assert crossing.node in saved or crossing.node not in returned
        val = crossing.node.meta.get("val")
        expected_bytes = val.numel() * val.element_size() if isinstance(val, torch.Tensor) else None
        assert str(crossing.nbytes) == str(expected_bytes)
    static = [one.nbytes for one in boundary if isinstance(one.nbytes, int)]
    if len(static) == len([one for one in boundary if one.nbytes is not None]):
        assert boundary.nbytes == sum(static)
        assert sum(boundary.by_module.values()) == sum(boundary.by_dtype.values()) == sum(static)


def _check_derived(oracle: Oracle, nodes: list[fx.Node]) -> None:
    flow, index, effects = oracle.index.flow, oracle.index, oracle.effects()
    inputs, outputs = [*index.inputs.values()], [*index.outputs.values()]
    for some in [*([one] for one in inputs), inputs[::2], inputs]:
        assert list(flow.derived_from(some)) == [
            node
            for node in nodes
            if node.op != "placeholder" and oracle.sources(node) and {*oracle.sources(node)} <= {*some}
        ]
    affecting = set().union(*(oracle.before[node] for node in effects))
    for group in [*([one] for one in outputs), outputs[::2], outputs]:
        assert list(flow.only_feeding(group)) == [
            node for node in nodes if node not in affecting and oracle.sinks(node) and {*oracle.sinks(node)} <= {*group}
        ]


def _check_uses(oracle: Oracle) -> None:
    """The uses of an input depend on it, and are in graph order; a view of it stands for its own users."""
    flow = oracle.index.flow
    for record in oracle.index.inputs.values():
        uses = flow.uses(record)
        assert [*uses] == [node for node in oracle.index.graph.nodes if node in uses]
        assert (flow.first_use(record), flow.last_use(record)) == ((uses[0], uses[-1]) if uses else (None, None))
        assert {*uses} == set().union(*(used_through_views(node) for node in record.nodes))


def used_through_views(node: fx.Node) -> set[fx.Node]:
    """The nodes that use a value, by what the operators' schemas say of aliases."""
    uses: set[fx.Node] = set()
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        whole = user.args[0] if user.target is operator.getitem else None
        if isinstance(whole, fx.Node) and isinstance(whole.target, torch._ops.OpOverload):
            (returned, *others) = whole.target._schema.returns
            alias, write = returned.alias_info is not None and not others, False
        elif schema is None:
            alias, write = False, False
        else:
            given = [one for one in zip(schema.arguments, user.args) if one[1] is node]
            infos = [argument.alias_info for argument, _ in given if argument.alias_info is not None]
            alias = bool(infos) and any(one.alias_info is not None for one in schema.returns)
            write = any(info.is_write for info in infos)
        if write or not alias:
            uses.add(user)
        if alias:
            uses |= used_through_views(user)
    return uses


def _check_chain(index: JointGraphIndex, leaf: Leaf[Any], *, forward: bool) -> None:
    """The chain of a slot is a line, and it ends for the reason that it gives."""
    chain = index.flow.chain(leaf)
    line = [leaf.node, *chain.nodes] if forward else [*chain.nodes]
    for one, following in pairwise(line):
        assert following.all_input_nodes == [one]
        assert [*one.users] == [following]
    if forward:
        users = [*line[-1].users]
        assert sorted(users) == [*chain.at]
        if len(users) != 1:
            assert chain.stop is (ChainStop.SEVERAL_USERS if users else ChainStop.UNUSED)
        elif users[0].op == "output":
            assert chain.stop is ChainStop.OUTPUT
        else:
            assert chain.stop is ChainStop.SEVERAL_INPUTS
            assert len(users[0].all_input_nodes) > 1
    elif leaf.node is None:
        assert chain == Chain((), ChainStop.NO_NODE, ())
    else:
        assert not line or line[-1] is leaf.node
        following = line[0].all_input_nodes[0] if line else leaf.node
        assert chain.at == (following,)
        if following.op == "placeholder":
            assert chain.stop is ChainStop.INPUT
        elif len(following.users) > 1:
            assert chain.stop is ChainStop.SEVERAL_USERS
        elif following.all_input_nodes:
            assert chain.stop is ChainStop.SEVERAL_INPUTS
            assert len(following.all_input_nodes) > 1
        else:
            assert chain.stop is ChainStop.NO_INPUTS
