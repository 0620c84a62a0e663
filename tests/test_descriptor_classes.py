"""Every class in torch's module of descriptors has a kind, and a case that shows it."""

from collections.abc import Iterator
from typing import Any

import pytest
from torch import fx
from torch._functorch._aot_autograd import descriptors as d

from jointgraph import InputKind, JointGraphIndex, OutputKind
from jointgraph import descriptors as ours
from tests.cases import CATALOGUE
from tests.cases.case import INPUT_KINDS, NO_VC_CHECK, OUTPUT_KINDS

ABSTRACT = {d.AOTInput, d.AOTOutput, d.DifferentiableAOTInput, d.DifferentiableAOTOutput}
LAYERS = {
    d.SubclassGetAttrAOTInput,
    d.SubclassSizeAOTInput,
    d.SubclassStrideAOTInput,
    d.SubclassGetAttrAOTOutput,
    d.SubclassSizeAOTOutput,
    d.SubclassStrideAOTOutput,
}
SHOWN_IN: dict[type, tuple[str, str]] = {
    d.ParamAOTInput: ("edges", "linear"),
    d.BufferAOTInput: ("mutations", "batch norm"),
    d.PlainAOTInput: ("edges", "odd arguments"),
    d.TangentAOTInput: ("edges", "output twice"),
    d.ViewBaseAOTInput: ("views", "view base"),
    d.SyntheticBaseAOTInput: ("views", "synthetic base"),
    d.ForwardTokenAOTInput: ("tokens", "in forward"),
    d.BackwardTokenAOTInput: ("tokens", "in backward"),
    d.PhiloxForwardSeedAOTInput: ("philox", "random operator"),
    d.PhiloxForwardBaseOffsetAOTInput: ("philox", "random operator"),
    d.PhiloxBackwardSeedAOTInput: ("philox", "random operator"),
    d.PhiloxBackwardBaseOffsetAOTInput: ("philox", "random operator"),
    d.DummyAOTInput: ("edges", "dummies"),
    d.SubclassGetAttrAOTInput: ("two tensor", "nested"),
    d.SubclassSizeAOTInput: ("nested", "jagged"),
    d.SubclassStrideAOTInput: ("nested", "dynamic shapes"),
    d.PlainAOTOutput: ("edges", "odd outputs"),
    d.GradAOTOutput: ("edges", "gradients missing"),
    d.InputMutationAOTOutput: ("mutations", "input with gradient"),
    d.MetadataMutationAOTOutput: ("views", "metadata mutation"),
    d.IntermediateBaseAOTOutput: ("views", "intermediate base"),
    d.SavedForBackwardsAOTOutput: ("partitioned", "default partition"),
    d.ForwardTokenAOTOutput: ("tokens", "in forward"),
    d.BackwardTokenAOTOutput: ("tokens", "in backward"),
    d.PhiloxUpdatedForwardOffsetAOTOutput: ("philox", "random operator"),
    d.PhiloxUpdatedBackwardOffsetAOTOutput: ("philox", "random operator"),
    d.DummyAOTOutput: ("edges", "dummies"),
    d.SubclassGetAttrAOTOutput: ("dtensor", "linear"),
    d.SubclassSizeAOTOutput: ("nested", "symbolic sizes"),
    d.SubclassStrideAOTOutput: ("nested", "symbolic sizes, transposed"),
}
if NO_VC_CHECK is not None:
    SHOWN_IN[NO_VC_CHECK] = ("partitioned", "without version check")


def _classes(base: type) -> set[type]:
    """The classes in torch's module of descriptors below ``base``, itself included."""
    return {one for one in vars(d).values() if isinstance(one, type) and issubclass(one, base)}


CONCRETE = sorted((_classes(d.AOTInput) | _classes(d.AOTOutput)) - ABSTRACT, key=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", CONCRETE)
def test_every_class_of_torchs_has_a_kind(cls: type) -> None:
    """A class that torch defines has the kind in our table, never OTHER, unless it is a layer of a subclass."""
    if cls in LAYERS:
        assert cls in ours.SUBCLASS_LAYERS
    elif issubclass(cls, d.AOTInput):
        assert ours.INPUT_KINDS[cls] is INPUT_KINDS[cls] is not InputKind.OTHER
    elif issubclass(cls, d.AOTOutput):
        assert ours.OUTPUT_KINDS[cls] is OUTPUT_KINDS[cls] is not OutputKind.OTHER


@pytest.mark.parametrize("cls", CONCRETE)
def test_every_class_of_torchs_is_shown_by_a_case(cls: type) -> None:
    """A class that torch defines is in a slot of the case that is named here for it."""
    family, name = SHOWN_IN[cls]
    (case,) = [case for case in CATALOGUE[family] if case.name == name]
    assert cls in {shown for graph in case.graphs for shown in _shown(graph)}


def _shown(graph: fx.Graph) -> Iterator[type]:
    """The classes of the descriptors in the slots of a graph, and of what they are layers of."""
    output = graph.output_node()
    descs: list[Any] = [node.meta.get("desc") for node in graph.find_nodes(op="placeholder")] + output.meta["desc"]
    for desc in descs:
        layer = desc
        while type(layer) in LAYERS:
            yield type(layer)
            layer = layer.base
        yield type(layer)


def test_a_class_of_ones_own_is_of_the_other_kind() -> None:
    """Descriptors of a class that nobody knows are values like others, of the kind OTHER, without links."""

    class MyInput(d.AOTInput):
        def expr(self) -> str:
            return "__mine_in"

    class MyOutput(d.AOTOutput):
        def expr(self) -> str:
            return "__mine_out"

    graph = fx.Graph()
    placeholder = graph.placeholder("mine")
    placeholder.meta["desc"] = MyInput()
    graph.output([placeholder])
    graph.output_node().meta["desc"] = [MyOutput()]

    index = JointGraphIndex(graph)
    (mine,), (made,) = index.inputs.values(), index.outputs.values()
    assert (mine.kind, made.kind) == (InputKind.OTHER, OutputKind.OTHER)
    assert (mine.name, made.name) == ("__mine_in", "__mine_out")
    assert mine.node is made.node is placeholder
    assert {mine.grad, mine.mutation, mine.tangent_of, made.tangent, made.grad_of, made.mutated_input} == {None}
