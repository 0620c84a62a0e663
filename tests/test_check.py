"""What `index.check()` finds, rule by rule, and that it finds nothing in what AOTAutograd makes."""

from collections.abc import Callable

import attrs
import pytest
import torch
from torch import fx, nn
from torch._functorch._aot_autograd import descriptors as d

from jointgraph import Finding, FindingCode, JointGraphError, JointGraphIndex, Severity
from tests import models
from tests.capture import JointWithDescriptors, joint, partition
from tests.cases import CATALOGUE
from tests.cases.case import Case
from tests.cases.models import two
from tests.graphs import copy_of, entries, placeholder, set_outputs, snapshot
from tests.models import Sample

aten = torch.ops.aten
FIRST = d.ParamAOTInput("first.weight")


def broken(index: JointGraphIndex) -> list[Finding]:
    """The findings that are more than notes."""
    return [finding for finding in index.check() if finding.severity is not Severity.NOTE]


# What AOTAutograd makes.

CASES = [pytest.param(case, id=f"{family}: {case.name}") for family, cases in CATALOGUE.items() for case in cases]


@pytest.mark.parametrize("case", CASES)
def test_what_aotautograd_makes_breaks_no_rule(case: Case) -> None:
    """No error and no warning on any graph of the catalogue, and checking changes nothing."""
    made_by_hand = case.name == "dummies"  # Its only input has no val.
    for graph in case.graphs:
        before = snapshot(graph)
        codes = [finding.code for finding in broken(JointGraphIndex(graph))]
        assert codes == ([FindingCode.MISSING_VAL] if made_by_hand else [])
        assert snapshot(graph) == before


@pytest.mark.parametrize("case", CASES)
def test_what_aotautograd_makes_is_what_its_runtime_expects(case: Case) -> None:
    """Inputs and outputs of a captured module are those that AOTAutograd's metadata counts, subclasses and all."""
    captured = case.capture()
    if not isinstance(captured, JointWithDescriptors):
        pytest.skip("not captured from a module: there is no metadata")
    found = JointGraphIndex(captured).check(captured)
    assert [str(finding) for finding in found if finding.severity is not Severity.NOTE] == []


def test_the_notes_on_a_captured_graph(three_answers: Sample) -> None:
    """Inputs that nothing reads are noted in placeholder order."""
    notes = [(note.code, note.where) for note in three_answers.index().check()]
    assert notes == [(FindingCode.DEAD_INPUT, "placeholder primals_2")]


def test_a_detached_result_is_noted(many_outputs: Sample) -> None:
    """It depends on a trained parameter and has no tangent; the frozen and the integer ones aren't noted."""
    notes = [note for note in many_outputs.index().check() if note.code is FindingCode.NO_TANGENT]
    assert [note.where for note in notes] == ["output[6] (add)"]


# One graph for each rule.


@attrs.frozen
class Broken:
    """A way to break a graph, and what must be said of it."""

    code: FindingCode
    breaks: Callable[[fx.Graph], object]
    where: str
    rule: str
    around: str
    """A line of the neighbourhood."""


def descriptors(graph: fx.Graph) -> list[d.AOTOutput | None]:
    """The graph's own list."""
    descs: list[d.AOTOutput | None] = graph.output_node().meta["desc"]
    return descs


def nest(graph: fx.Graph) -> None:
    first, *others = entries(graph)
    graph.output_node().args = ([[first], *others],)


def grow_output_list(graph: fx.Graph) -> None:
    graph.output_node().args = ([*entries(graph), None],)


def lose_descriptor(graph: fx.Graph) -> None:
    del placeholder(graph, "primals_1").meta["desc"]


def describe_wrongly(graph: fx.Graph) -> None:
    placeholder(graph, "primals_1").meta["desc"] = d.PlainAOTOutput(0)


def describe_twice(graph: fx.Graph) -> None:
    placeholder(graph, "primals_3").meta["desc"] = FIRST
    descriptors(graph)[3] = None
    values = entries(graph)
    values[3] = None
    graph.output_node().args = (values,)


def rename_owner(graph: fx.Graph) -> None:
    placeholder(graph, "primals_1").meta["desc"] = d.ParamAOTInput("another")


def read_erased(graph: fx.Graph) -> None:
    relu = next(node for node in graph.nodes if node.name == "relu")
    with graph.inserting_before(relu):
        made = graph.call_function(aten.neg.default, relu.args)
    graph.erase_node(made)
    values = entries(graph)
    values[1] = made
    graph.output_node().args = (values,)


def read_foreign(graph: fx.Graph) -> None:
    values = entries(graph)
    values[1] = fx.Graph().placeholder("strange")
    graph.output_node().args = (values,)


def reorder(graph: fx.Graph) -> None:
    relu = next(node for node in graph.nodes if node.name == "relu")
    relu.args[0].prepend(relu)


def resize_input(graph: fx.Graph) -> None:
    node = placeholder(graph, "primals_2")
    with node.meta["val"].fake_mode:
        node.meta["val"] = torch.empty(16, dtype=torch.bfloat16)


def resize_tangent(graph: fx.Graph) -> None:
    node = placeholder(graph, "tangents_1")
    with node.meta["val"].fake_mode:
        node.meta["val"] = torch.empty(5, 7)


def lose_val(graph: fx.Graph) -> None:
    del next(node for node in graph.nodes if node.name == "relu").meta["val"]


def stale_val(graph: fx.Graph) -> None:
    node = next(node for node in graph.nodes if node.name == "relu")
    with node.meta["val"].fake_mode:
        node.meta["val"] = torch.empty(1, 16)


def bad_arguments(graph: fx.Graph) -> None:
    node = next(node for node in graph.nodes if node.name == "addmm")
    node.args = (node.args[0], node.args[2], node.args[1])


def real_val(graph: fx.Graph) -> None:
    next(node for node in graph.nodes if node.name == "relu").meta["val"] = torch.ones(5, 16)


def other_strides(graph: fx.Graph) -> None:
    node = next(node for node in graph.nodes if node.name == "relu")
    node.meta["val"] = node.meta["val"].t().contiguous().t()


def constant_gradient(graph: fx.Graph) -> None:
    values = entries(graph)
    values[1] = 3.0
    graph.output_node().args = (values,)


def behind_the_output(graph: fx.Graph) -> None:
    with graph.inserting_after(graph.output_node()):
        graph.call_function(aten.neg.default, (placeholder(graph, "primals_1"),))


def tangent_named_primal(graph: fx.Graph) -> None:
    placeholder(graph, "tangents_1").target = "primals_6"


def primal_named_tangent(graph: fx.Graph) -> None:
    placeholder(graph, "primals_1").target = "my_tangents"


def wrong_tag(graph: fx.Graph) -> None:
    next(node for node in graph.nodes if node.name == "relu").meta["partitioner_tag"] = "is_backward"


def dead_input(graph: fx.Graph) -> None:
    node = placeholder(graph, "primals_5")
    node.replace_all_uses_with(placeholder(graph, "primals_1"))


def lose_tangent(graph: fx.Graph) -> None:
    node = placeholder(graph, "tangents_1")
    with graph.inserting_after(node):
        ones = graph.call_function(aten.ones.default, ([5, 4],))
    ones.meta["val"] = node.meta["val"]
    node.replace_all_uses_with(ones)
    graph.erase_node(node)


BROKEN = [
    Broken(FindingCode.OUTPUT_LIST, nest, "output[0] ([addmm_1])", "it is nested", "-> output[0]: [addmm_1]"),
    Broken(FindingCode.SLOT_COUNT, grow_output_list, "output", "7 entries and 6 descriptors", ""),
    Broken(FindingCode.MISSING_DESCRIPTOR, lose_descriptor, "placeholder primals_1", "is missing", "-> %primals_1 "),
    Broken(FindingCode.FOREIGN_DESCRIPTOR, describe_wrongly, "placeholder primals_1", "no AOTInput", "-> %primals_1 "),
    Broken(
        FindingCode.DUPLICATE_DESCRIPTOR,
        describe_twice,
        "placeholder primals_3",
        "the same descriptor as placeholder primals_1",
        "-> %primals_3 ",
    ),
    Broken(FindingCode.STRANGER, rename_owner, "output[1] (t_8)", "the gradient of ParamAOTInput", "-> output[1]: t_8"),
    Broken(
        FindingCode.ERASED_NODE,
        read_erased,
        "output[1] (neg_default)",
        "neg_default, which was erased",
        "-> output[1]: neg_default",
    ),
    Broken(
        FindingCode.FOREIGN_NODE,
        read_foreign,
        "output[1] (strange)",
        "a node of another graph",
        "-> output[1]: strange",
    ),
    Broken(FindingCode.ORDER, reorder, "node relu", "it reads addmm, which comes after it", "-> %relu "),
    Broken(
        FindingCode.GRADIENT_MISMATCH,
        resize_input,
        "output[2] (view_1)",
        "dtype torch.float32 instead of torch.bfloat16, that of ParamAOTInput(target='first.bias')",
        "   output[3]: t_5, GradAOTOutput(grad_of=ParamAOTInput(target='second.weight'))",
    ),
    Broken(
        FindingCode.TANGENT_MISMATCH,
        resize_tangent,
        "placeholder tangents_1",
        "shape [5, 7] instead of [5, 4], that of PlainAOTOutput(idx=0)",
        "-> %tangents_1 ",
    ),
    Broken(FindingCode.MISSING_VAL, lose_val, "node relu", 'no meta["val"]', "-> %relu "),
    Broken(FindingCode.STALE_VAL, stale_val, "node relu", "shape [1, 16] instead of [5, 16]", "-> %relu "),
    Broken(FindingCode.STALE_VAL, real_val, "node relu", "is a real tensor", "-> %relu "),
    Broken(FindingCode.STALE_VAL, other_strides, "node relu", "strides [1, 5] instead of [16, 1]", "-> %relu "),
    Broken(FindingCode.GRADIENT_MISMATCH, constant_gradient, "output[1] (3.0)", "it has 3.0 instead of a tensor", ""),
    Broken(
        FindingCode.ORDER, behind_the_output, "node neg_default", "it comes after the output node", "-> %neg_default "
    ),
    Broken(FindingCode.PLACEHOLDER_NAME, tangent_named_primal, "placeholder tangents_1", "an input of forward", ""),
    Broken(FindingCode.PLACEHOLDER_NAME, primal_named_tangent, "placeholder primals_1", "take it for a tangent", ""),
    Broken(FindingCode.PHASE_TAG, wrong_tag, "node relu", "tagged 'is_backward', and forward needs it", "-> %relu "),
    Broken(FindingCode.STALE_VAL, bad_arguments, "node addmm", "does not work", "-> %addmm "),
    Broken(FindingCode.DEAD_INPUT, dead_input, "placeholder primals_5", "nothing reads it", "-> %primals_5 "),
    Broken(FindingCode.NO_TANGENT, lose_tangent, "output[0] (addmm_1)", "no tangent", "-> output[0]: addmm_1"),
]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.breaks.__name__) for case in BROKEN])
def test_each_rule_is_looked_at(mlp: Sample, case: Broken) -> None:
    """The finding names the place, the rule and the way out, and shows the neighbourhood; the graph stays as it is."""
    module = mlp.copy()
    for node in module.graph.nodes:
        node.meta = dict(node.meta)
    index = JointGraphIndex(module)
    assert case.code not in [finding.code for finding in index.check()]
    case.breaks(module.graph)
    unprintable = case.breaks in {read_erased, read_foreign, behind_the_output}
    before = None if unprintable else snapshot(module.graph)
    found = [finding for finding in index.check() if finding.code is case.code]
    assert [finding.where for finding in found][:1] == [case.where]
    finding = found[0]
    assert case.rule in finding.rule
    assert finding.remedy
    assert case.around in finding.around
    assert finding.node is None or finding.node.graph is module.graph
    shown = str(finding)
    assert shown.startswith(f"{finding.severity.value} {case.code.value}, {case.where}: ")
    assert finding.remedy in shown
    assert all(line in shown for line in finding.around.splitlines())
    if before is not None:
        assert snapshot(module.graph) == before


def test_every_rule_has_a_broken_graph() -> None:
    """A new rule needs one here, or where it is named in this test."""
    elsewhere = {FindingCode.RUNTIME_METADATA, FindingCode.SLOT_MISMATCH}  # Below; test_carry.
    assert {case.code for case in BROKEN} | elsewhere == {*FindingCode}


def test_a_malformed_graph_has_findings_instead_of_an_error(mlp: Sample) -> None:
    """All that refuses an index, and what is wrong in the interior, too."""
    module = mlp.copy()
    index = JointGraphIndex(module)
    grow_output_list(module.graph)
    reorder(module.graph)
    assert [finding.code for finding in broken(index)] == [FindingCode.SLOT_COUNT, FindingCode.ORDER]


def test_a_half_is_not_asked_for_what_the_other_half_has() -> None:
    """A gradient of an input that only the forward graph takes is no stranger (the catalogue has both halves)."""
    halves = [case for case in CATALOGUE["partitioned"] if case.name == "default partition"]
    (case,) = halves
    assert [broken(JointGraphIndex(graph)) for graph in case.graphs] == [[], []]


# The runtime wrapper.


def swap_outputs(graph: fx.Graph, one: int, other: int) -> None:
    """Has two outputs trade places, with their descriptors."""
    values, descs = entries(graph), [*descriptors(graph)]
    values[one], values[other], descs[one], descs[other] = values[other], values[one], descs[other], descs[one]
    set_outputs(graph, values, descs)


def captured(name: str) -> tuple[JointWithDescriptors, fx.Graph]:
    """A capture of a sample of its own, and its graph, to change."""
    sample = models.sample(name)
    made = joint(sample.module, *sample.args, **sample.kwargs)
    made.graph_module = copy_of(made.graph_module)
    return made, made.graph_module.graph


def runtime_findings(made: JointWithDescriptors) -> list[str]:
    """What is said about the runtime wrapper."""
    index = JointGraphIndex(made)
    found = [finding for finding in index.check(made) if finding.code is FindingCode.RUNTIME_METADATA]
    assert not [finding for finding in index.check() if finding.code is FindingCode.RUNTIME_METADATA]
    return [f"{finding.where}: {finding.rule}" for finding in found]


def test_an_input_more_than_is_handed_over() -> None:
    """The count of inputs."""
    made, graph = captured("mlp")
    with graph.inserting_before(placeholder(graph, "primals_1")):
        graph.placeholder("primals_0").meta["desc"] = d.PlainAOTInput(1)
    assert runtime_findings(made) == ["graph: it takes 7 inputs, and AOTAutograd hands over 6."]


def test_inputs_in_another_order() -> None:
    """Each input by its place."""
    made, graph = captured("mlp")
    placeholder(graph, "primals_1").prepend(placeholder(graph, "primals_2"))
    first, second = runtime_findings(made)
    assert first == "placeholder primals_2: AOTAutograd hands over ParamAOTInput(target='first.weight') in its place."
    assert second.startswith("placeholder primals_1: AOTAutograd hands over ParamAOTInput(target='first.bias')")


def test_another_name_is_no_harm() -> None:
    """What is handed over is known by its place."""
    made, _ = captured("mlp")
    index = JointGraphIndex(made)
    with index.edit() as edit:
        edit.rename({"first.weight": "w"})
    assert runtime_findings(made) == []


def test_an_output_more_than_is_expected() -> None:
    """The count of outputs."""
    made, graph = captured("mlp")
    set_outputs(graph, [*entries(graph), entries(graph)[0]], [*descriptors(graph), d.PlainAOTOutput(1)])
    assert runtime_findings(made) == [
        "output: it returns 7 values, and AOTAutograd expects 1 of forward and 5 of backward."
    ]


def test_gradients_in_another_order() -> None:
    """Each gradient by its place."""
    made, graph = captured("mlp")
    swap_outputs(graph, 1, 2)
    first, second = runtime_findings(made)
    expected = "GradAOTOutput(grad_of=ParamAOTInput(target='first.weight'))"
    assert first == f"output[1] (view_1): AOTAutograd expects {expected} in its place."
    assert "ParamAOTInput(target='first.bias')" in second


def test_a_mutation_in_another_place() -> None:
    """New values of mutated inputs come first."""
    made, graph = captured("batch_norm")
    swap_outputs(graph, 0, 3)
    first, second = runtime_findings(made)
    assert first.startswith("output[0] (mean): AOTAutograd expects InputMutationAOTOutput(")
    assert second.endswith("AOTAutograd expects PlainAOTOutput(idx=0) in its place.")


def test_new_values_that_trade_places() -> None:
    """Each by its place, as the wrapper copies them into the inputs in order."""
    made, graph = captured("batch_norm")
    swap_outputs(graph, 0, 1)
    first, second = runtime_findings(made)
    assert "expects InputMutationAOTOutput(mutated_input=BufferAOTInput(target='norm.running_mean'))" in first
    assert "expects InputMutationAOTOutput(mutated_input=BufferAOTInput(target='norm.running_var'))" in second


def test_results_that_trade_places() -> None:
    """Each by its number."""
    made, graph = captured("many_outputs")
    swap_outputs(graph, 0, 1)
    first, second = runtime_findings(made)
    assert first.endswith("AOTAutograd expects PlainAOTOutput(idx=0) in its place.")
    assert second.endswith("AOTAutograd expects PlainAOTOutput(idx=1) in its place.")


def test_none_in_place_of_a_result() -> None:
    """A result that was a tensor; the one that was ``None`` and the number are as they were."""
    made, graph = captured("many_outputs")
    graph.output_node().args = ([None, *entries(graph)[1:]],)
    assert runtime_findings(made) == ["output[0] (None): AOTAutograd expects a tensor in its place."]


def test_leaves_that_trade_places() -> None:
    """Those of a tensor subclass's result, and ``None`` for one leaf of a gradient."""
    made = joint(nn.Linear(3, 3), two(2, 3))
    graph = made.graph_module.graph
    values, descs = entries(graph), [*descriptors(graph)]
    values[0], values[1], descs[0], descs[1] = values[1], values[0], descs[1], descs[0]
    values[2] = None
    set_outputs(graph, values, descs)
    first, second, third = runtime_findings(made)
    assert first.endswith("expects PlainAOTOutput(idx=0), its leaf a, in its place.")
    assert second.endswith("expects PlainAOTOutput(idx=0), its leaf b, in its place.")
    assert third == "output[2] (None): AOTAutograd expects a tensor in its place."


def test_a_renamed_buffer_keeps_its_place() -> None:
    """In what is mutated as well."""
    made, _ = captured("batch_norm")
    index = JointGraphIndex(made)
    with index.edit() as edit:
        edit.rename({"norm.running_mean": "mean"})
    assert runtime_findings(made) == []


def test_a_half_is_not_checked_against_the_whole(mlp: Sample) -> None:
    """AOTAutograd calls it in its own way."""
    with pytest.raises(JointGraphError, match="about the whole graph"):
        JointGraphIndex(partition(mlp.joint).forward).check(mlp.joint)


def test_a_tangent_that_is_handed_over_and_not_taken() -> None:
    """An output that requires a gradient."""
    made, graph = captured("mlp")
    lose_tangent(graph)
    count, tangent = runtime_findings(made)
    assert count == "graph: it takes 5 inputs, and AOTAutograd hands over 6."
    assert tangent.startswith("output[0] (addmm_1): it requires a gradient, and its tangent")


def test_something_else_than_a_capture_is_refused(mlp: Sample) -> None:
    """The graph module has no metadata."""
    with pytest.raises(TypeError, match="takes the JointWithDescriptors of the graph"):
        mlp.index().check(mlp.joint.graph_module)
