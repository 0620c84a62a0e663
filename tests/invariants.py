"""What an index must say of any graph: `check_invariants` goes through the whole of its API."""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import fx
from torch._functorch._aot_autograd import descriptors as d

from jointgraph import (
    GradStatus,
    GraphKind,
    Input,
    InputKind,
    JointGraphIndex,
    Leaf,
    Output,
    OutputKind,
    SubclassError,
    UnknownNameError,
)
from jointgraph.descriptors import SavedForBackwardsAOTInput

_LAYERS = (
    d.SubclassGetAttrAOTInput,
    d.SubclassGetAttrAOTOutput,
    d.SubclassSizeAOTInput,
    d.SubclassSizeAOTOutput,
    d.SubclassStrideAOTInput,
    d.SubclassStrideAOTOutput,
)
_SIZES_AND_STRIDES = _LAYERS[2:]
_BACKWARDS_OWN = (d.BackwardTokenAOTInput, d.PhiloxBackwardSeedAOTInput, d.PhiloxBackwardBaseOffsetAOTInput)


def check_invariants(index: JointGraphIndex) -> None:
    """Assert all that holds for every graph, and that asking leaves the graph as it was."""
    graph = index.graph
    before = _snapshot(graph)
    _check_inputs(index)
    _check_outputs(index)
    _check_links(index)
    _check_views(index)
    _check_pairs(index)
    _check_aliases(index)
    _check_roles(index)
    _check_lookups(index)
    assert f"{index.kind.value}:" in repr(index)
    assert _snapshot(graph) == before, "asking changed the graph"


def _snapshot(graph: fx.Graph) -> object:
    """All that asking must leave as it is."""
    metas = [(node.name, id(node.meta.get("desc")), [*node.meta]) for node in graph.nodes]
    return graph.python_code("self").src, metas, copy.copy(graph.output_node().meta["desc"])


def _output_list(graph: fx.Graph) -> Any:
    return graph.output_node().args[0]


def _base(desc: Any) -> Any:
    return _base(desc.base) if isinstance(desc, _LAYERS) else desc


def _path(desc: Any) -> str:
    """The leaf that a slot's descriptor names, as its ``expr()`` has it after that of the value."""
    return str(desc.expr())[len(_base(desc).expr()) :].removeprefix(".") if isinstance(desc, _LAYERS) else ""


def _check_inputs(index: JointGraphIndex) -> None:
    """Each placeholder belongs to one input, which is read off its descriptor and position."""
    placeholders = [node for node in index.graph.nodes if node.op == "placeholder"]
    slots = [node.meta.get("desc", SavedForBackwardsAOTInput(node.name)) for node in placeholders]
    assert [*index.inputs] == list(dict.fromkeys(map(_base, slots)))

    seen: list[int] = []
    for desc, record in index.inputs.items():
        assert record.desc == desc
        for path, leaf in record.leaves.items():
            position = leaf.position
            seen.append(position)
            assert leaf.node is leaf.value is placeholders[position]
            assert leaf.desc == slots[position]
            assert _base(leaf.desc) == desc
            assert _path(leaf.desc) == path
            _check_leaf(record, path, leaf)
        assert record.is_used == any(node.users for node in record.nodes)
        _check_record(record)
    assert sorted(seen) == list(range(len(placeholders)))


def _check_outputs(index: JointGraphIndex) -> None:
    """Each described entry of the output list belongs to one output, which is read off its descriptor and position."""
    entries, slots = _output_list(index.graph), index.graph.output_node().meta["desc"]
    described = [position for position, slot in enumerate(slots) if slot is not None]
    assert [*index.outputs] == list(dict.fromkeys(_base(slots[position]) for position in described))

    seen: list[int] = []
    for desc, record in index.outputs.items():
        assert record.desc == desc
        for path, leaf in record.leaves.items():
            position = leaf.position
            seen.append(position)
            assert leaf.value is entries[position]
            assert leaf.node is (entries[position] if isinstance(entries[position], fx.Node) else None)
            assert leaf.desc == slots[position]
            assert _base(leaf.desc) == desc
            assert _path(leaf.desc) == path
            _check_leaf(record, path, leaf)
        if len(record.leaves) == 1:
            assert record.value is entries[record.position]
        else:
            with pytest.raises(SubclassError, match="leaves"):
                _ = record.value
        _check_record(record)
    assert sorted(seen) == described


def _check_leaf(record: Input | Output, path: str, leaf: Leaf[Any]) -> None:
    assert leaf.path == path
    assert leaf.val is (leaf.node.meta.get("val") if leaf.node is not None else None)
    assert repr(path) in repr(leaf)


def _check_record(record: Input | Output) -> None:
    """The properties of a record agree with its leaves."""
    leaves: list[Leaf[Any]] = [*record.leaves.values()]
    nodes = [leaf.node for leaf in leaves if leaf.node is not None]
    assert leaves
    assert len(leaves) == 1 or "" not in record.leaves
    assert [*record.nodes] == nodes
    for asked in ("node", "position", "val"):
        if len(leaves) == 1:
            assert getattr(record, asked) is getattr(leaves[0], asked) or asked == "position"
        else:
            with pytest.raises(SubclassError, match="leaves"):
                getattr(record, asked)
    tensors = [leaf.val for leaf in leaves if isinstance(leaf.val, torch.Tensor)]
    expected = [str(tensor.numel() * tensor.element_size()) for tensor in tensors]
    if len(tensors) <= 1:
        assert [str(record.nbytes)] == (expected or ["None"])
    else:
        assert str(record.nbytes) == str(sum(tensor.numel() * tensor.element_size() for tensor in tensors))
    assert record.name
    assert record.name == getattr(record.desc, "target", record.name)
    assert record.name in repr(record)
    assert record.kind.value in repr(record)


def _check_links(index: JointGraphIndex) -> None:
    """Links lead to records of this index, there and back, where the descriptors say; and nowhere else."""
    for record in index.inputs.values():
        desc = record.desc
        slot = index.outputs.get(d.GradAOTOutput(desc)) if isinstance(desc, d.DifferentiableAOTInput) else None
        computed = slot is not None and not _is_empty(slot)
        assert record.grad is (slot if computed else None)
        status = GradStatus.PRESENT if computed else GradStatus.NOT_REQUESTED if slot is None else GradStatus.MISSING
        assert record.grad_status is status
        if record.grad is not None:
            assert record.grad.grad_of is record

        assert record.mutation is index.outputs.get(d.InputMutationAOTOutput(desc))
        if record.mutation is not None:
            assert record.mutation.mutated_input is record

        assert record.tangent_of is (index.outputs.get(desc.output) if isinstance(desc, d.TangentAOTInput) else None)
        if record.tangent_of is not None:
            assert record.tangent_of.tangent is record

    for output in index.outputs.values():
        made = output.desc
        tangent = index.inputs.get(d.TangentAOTInput(made)) if isinstance(made, d.DifferentiableAOTOutput) else None
        assert output.tangent is tangent
        if tangent is not None:
            assert tangent.tangent_of is output

        grad_of = index.inputs.get(made.grad_of) if isinstance(made, d.GradAOTOutput) else None
        assert output.grad_of is (None if _is_empty(output) else grad_of)
        if output.grad_of is not None:
            assert output.grad_of.grad is output

        mutated = index.inputs.get(made.mutated_input) if isinstance(made, d.InputMutationAOTOutput) else None
        assert output.mutated_input is mutated
        if mutated is not None:
            assert mutated.mutation is output


def _is_empty(output: Output) -> bool:
    """Whether all there is of it is ``None``."""
    return [leaf.value for leaf in output.leaves.values()] == [None]


def _check_views(index: JointGraphIndex) -> None:
    """Every view is a part of ``inputs`` or ``outputs``, in their order, under the key that the descriptor gives."""
    inputs, outputs = list(index.inputs.values()), list(index.outputs.values())

    def part(records: Iterable[Any], kind: InputKind | OutputKind, key: Callable[[Any], object]) -> dict[Any, Any]:
        return {key(record.desc): record for record in records if record.kind is kind}

    _same(index.params, part(inputs, InputKind.PARAM, lambda desc: desc.target))
    _same(index.buffers, part(inputs, InputKind.BUFFER, lambda desc: desc.target))
    _same(index.plain_inputs, part(inputs, InputKind.PLAIN, lambda desc: desc.idx))
    _same(index.plain_outputs, part(outputs, OutputKind.PLAIN, lambda desc: desc.idx))
    _same(index.tangents, part(inputs, InputKind.TANGENT, lambda desc: desc.output))
    _same(index.mutations, part(outputs, OutputKind.INPUT_MUTATION, lambda desc: desc.mutated_input))
    computed = [output for output in outputs if not _is_empty(output)]
    _same(index.grads, part(computed, OutputKind.GRAD, lambda desc: desc.grad_of))

    saved: list[Input] | list[Output] = []
    if index.kind is GraphKind.FORWARD:
        saved = [output for output in outputs if output.kind is OutputKind.SAVED]
    elif index.kind is GraphKind.BACKWARD:
        saved = [
            record
            for record in inputs
            if record.kind is not InputKind.TANGENT and not isinstance(record.desc, _BACKWARDS_OWN)
        ]
    _same(index.saved, {node.name: record for record in saved for node in record.nodes})
    if index.kind is not GraphKind.BACKWARD:
        assert InputKind.SAVED not in {record.kind for record in inputs}


def _same(view: Mapping[Any, Any], expected: Mapping[Any, Any]) -> None:
    """The view shows these records and no others."""
    assert [*view] == [*expected]
    assert len(view) == len(expected)
    assert all(shown is record for shown, record in zip(view.values(), expected.values(), strict=True))
    assert all(view[key] is record and key in view for key, record in expected.items())
    assert view.get(object()) is None
    with pytest.raises(UnknownNameError):
        view[object()]


def _check_pairs(index: JointGraphIndex) -> None:
    """The pairs are the forward inputs with their gradients, and the forward outputs with their tangents."""
    forward_inputs = [record for record in index.inputs.values() if record.kind is not InputKind.TANGENT]
    assert [*index.input_grads] == [record.desc for record in forward_inputs]
    for record, pair in zip(forward_inputs, index.input_grads.values(), strict=True):
        assert pair.input is record
        assert pair.grad is record.grad
        _check_leaf_pairs(pair, pair.input, pair.grad)

    forward_outputs = [record for record in index.outputs.values() if record.kind is not OutputKind.GRAD]
    assert [*index.output_tangents] == [record.desc for record in forward_outputs]
    for output, output_pair in zip(forward_outputs, index.output_tangents.values(), strict=True):
        assert output_pair.output is output
        assert output_pair.tangent is output.tangent
        _check_leaf_pairs(output_pair, output_pair.output, output_pair.tangent)


def _check_leaf_pairs(pair: Any, one: Input | Output, other: Input | Output | None) -> None:
    """Leaves that are no sizes or strides pair by path; where the paths differ, both sides are shown."""
    if other is None:
        assert pair.leaf_pairs() == ()
        return
    left, right = (
        [path for path, leaf in side.leaves.items() if not isinstance(leaf.desc, _SIZES_AND_STRIDES)]
        for side in (one, other)
    )
    if set(left) == set(right):
        found = pair.leaf_pairs()
        assert [(a.path, b.path) for a, b in found] == [(path, path) for path in left]
        assert all(a == one.leaves[a.path] and b == other.leaves[b.path] for a, b in found)
    else:
        with pytest.raises(SubclassError) as caught:
            pair.leaf_pairs()
        assert str(left) in str(caught.value)
        assert str(right) in str(caught.value)


def _check_aliases(index: JointGraphIndex) -> None:
    """Aliases go both ways, are never the input itself, and hold for all of a group alike.

    A tangent has none: autograd hands over each as a tensor of its own, though capture may make two on one storage.
    """
    for record in index.inputs.values():
        assert record.kind is not InputKind.TANGENT or not record.aliases
        assert record not in record.aliases
        positions = [alias.leaves[next(iter(alias.leaves))].position for alias in record.aliases]
        assert positions == sorted(positions)
        for alias in record.aliases:
            assert alias is index.inputs[alias.desc]
            assert {*alias.aliases, alias} == {*record.aliases, record}


def _check_roles(index: JointGraphIndex) -> None:
    """``roles`` is the inverse of ``nodes``."""
    expected: dict[fx.Node, list[Input | Output]] = {node: [] for node in index.graph.nodes}
    records: list[Input | Output] = [*index.inputs.values(), *index.outputs.values()]
    for record in records:
        for node in dict.fromkeys(record.nodes):
            expected[node].append(record)
    for node, filled in expected.items():
        assert list(index.roles(node)) == filled


def _check_lookups(index: JointGraphIndex) -> None:
    """A base descriptor finds its record, whoever made it; what isn't there is refused with the key."""
    for desc, record in index.inputs.items():
        assert desc in index
        assert index[desc] is index[copy.deepcopy(desc)] is record
    for output_desc, output in index.outputs.items():
        assert output_desc in index
        assert index[output_desc] is index[copy.deepcopy(output_desc)] is output
    for stranger in (d.PlainAOTInput(10**6), d.PlainAOTOutput(10**6), d.ParamAOTInput("no such thing")):
        assert stranger not in index
        with pytest.raises(UnknownNameError) as caught:
            index[stranger]
        assert caught.value.key == stranger
    assert object() not in index
