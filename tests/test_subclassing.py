"""Classes derived from `JointGraphIndex`: what they leave out, and the kinds they give."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch._functorch._aot_autograd import descriptors as d

from jointgraph import GraphKind, Input, InputKind, JointGraphError, JointGraphIndex, OutputKind, UnknownNameError
from jointgraph import fx_utils as ours
from tests.capture import joint
from tests.cases.models import Fn, multiply, two
from tests.graphs import entries, placeholder
from tests.models import Sample


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter, and a head that is trained in full."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 6).requires_grad_(False)
        self.lora_a, self.lora_b = nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)
        self.head = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.base(x) + self.lora_b(self.lora_a(x)))
        return y


@pytest.fixture(scope="session")
def adapted() -> Sample:
    """A capture of `Adapted`."""
    return Sample(Adapted(), (torch.randn(4, 6),))


# Inputs left out: adapters only.


class AdapterIndex(JointGraphIndex):
    """Of the parameters, only the adapters."""

    def keeps_input(self, desc: d.AOTInput) -> bool:
        return not isinstance(desc, d.ParamAOTInput) or desc.target.startswith("lora_")


HEAD = d.ParamAOTInput("head.weight")


def test_only_kept_inputs_are_in_the_views(adapted: Sample) -> None:
    """An index of adapters has the adapters alone in ``params``, ``inputs`` and ``input_grads``, beside all else."""
    index = AdapterIndex(adapted.joint)
    adapters = [d.ParamAOTInput("lora_a.weight"), d.ParamAOTInput("lora_b.weight")]
    tangent = d.TangentAOTInput(d.PlainAOTOutput(0))
    assert list(index.params) == ["lora_a.weight", "lora_b.weight"]
    assert list(index.inputs) == [*adapters, d.PlainAOTInput(0), tangent]
    assert list(index.input_grads) == [*adapters, d.PlainAOTInput(0)]
    assert [param.grad is not None for param in index.params.values()] == [True, True]
    assert HEAD not in index


def test_no_link_leads_to_an_input_left_out(adapted: Sample) -> None:
    """The gradient of a parameter that is left out is still an output, and its ``grad_of`` is ``None``."""
    index = AdapterIndex(adapted.joint)
    gradient = index.outputs[d.GradAOTOutput(HEAD)]
    assert gradient.node is not None
    assert gradient.grad_of is None
    assert index.grads[d.ParamAOTInput("lora_a.weight")].grad_of is index.params["lora_a.weight"]


def test_a_placeholder_left_out_has_no_role(adapted: Sample) -> None:
    """``roles`` of the placeholder of a parameter that is left out is empty."""
    everything, index = JointGraphIndex(adapted.joint), AdapterIndex(adapted.joint)
    assert index.roles(everything.params["head.weight"].node) == ()
    assert index.roles(everything.params["lora_a.weight"].node) == (index.params["lora_a.weight"],)


def test_no_alias_is_an_input_left_out(tied: Sample) -> None:
    """``aliases`` of a tied weight is empty if the other name is left out."""

    class WithoutHead(JointGraphIndex):
        def keeps_input(self, desc: d.AOTInput) -> bool:
            return desc != d.ParamAOTInput("head.weight")

    assert WithoutHead(tied.joint).params["embed.weight"].aliases == ()


def test_the_error_says_that_an_input_was_left_out(adapted: Sample) -> None:
    """Asking for a parameter that is left out raises, and says that ``keeps_input`` did it."""
    with pytest.raises(UnknownNameError, match=r"'head\.weight' is not in params.*keeps_input\(\)"):
        _ = AdapterIndex(adapted.joint).params["head.weight"]


def test_the_nine_functions_leave_out_the_same_inputs(adapted: Sample) -> None:
    """Given a narrowed index, the functions of ``fx_utils`` answer for what it keeps."""
    index = AdapterIndex(adapted.joint)
    adapters = {name: param.node for name, param in index.params.items()}
    assert ours.get_named_param_nodes(index) == adapters
    assert ours.get_param_nodes(index) == list(adapters.values())
    assert [desc.target for desc in ours.get_param_and_grad_nodes(index)] == list(adapters)
    assert HEAD not in ours.get_all_input_and_grad_nodes(index)


# Outputs left out: gradients only.


class GradientIndex(JointGraphIndex):
    """Of the outputs, only the gradients."""

    def keeps_output(self, desc: d.AOTOutput) -> bool:
        return isinstance(desc, d.GradAOTOutput)


def test_only_kept_outputs_are_in_the_views(batch_norm: Sample) -> None:
    """An index of gradients has those alone in ``outputs``: no result, no mutation, no pair with a tangent."""
    index = GradientIndex(batch_norm.joint)
    grads = [d.GradAOTOutput(d.ParamAOTInput(name)) for name in ("conv.weight", "norm.weight", "norm.bias")]
    assert list(index.outputs) == grads
    assert [len(index.plain_outputs), len(index.mutations), len(index.output_tangents)] == [0, 0, 0]
    assert [param.grad is not None for param in index.params.values()] == [True] * 3


def test_no_link_leads_to_an_output_left_out(batch_norm: Sample) -> None:
    """A buffer whose new value is left out has no ``mutation``, and a tangent no ``tangent_of``."""
    index = GradientIndex(batch_norm.joint)
    assert [buffer.mutation for buffer in index.buffers.values()] == [None] * 3
    assert index.tangents[d.PlainAOTOutput(0)].tangent_of is None


def test_an_entry_left_out_has_no_role(batch_norm: Sample) -> None:
    """``roles`` of a node that is returned under a descriptor that is left out is empty."""
    index = GradientIndex(batch_norm.joint)
    *_, result, grad, _, _, _, _, _, _ = entries(batch_norm.graph)
    assert index.roles(result) == ()
    assert index.roles(grad) == (index.grads[d.ParamAOTInput("conv.weight")],)


def test_an_input_whose_gradient_is_left_out_has_none(batch_norm: Sample) -> None:
    """With gradients left out, ``grad`` of each parameter is ``None`` and ``grads`` is empty."""

    class WithoutGradients(JointGraphIndex):
        def keeps_output(self, desc: d.AOTOutput) -> bool:
            return not isinstance(desc, d.GradAOTOutput)

    index = WithoutGradients(batch_norm.joint)
    assert [param.grad for param in index.params.values()] == [None] * 3
    assert dict(index.grads) == {}
    assert index.kind is GraphKind.JOINT


# What a filter is asked.


def test_filters_are_asked_about_base_descriptors() -> None:
    """A tensor subclass is kept or left out as a whole: the filter sees its parameter, not its leaves."""
    asked: list[d.AOTInput] = []

    class Asking(JointGraphIndex):
        def keeps_input(self, desc: d.AOTInput) -> bool:
            asked.append(desc)
            return desc != d.PlainAOTInput(0)

    index = Asking(joint(Fn(multiply, two(3)), two(2, 3)))
    assert list(index.params["w"].leaves) == ["a", "b"]
    assert d.PlainAOTInput(0) not in index
    assert {type(desc) for desc in asked} <= {d.ParamAOTInput, d.PlainAOTInput, d.TangentAOTInput}


# Kinds of one's own.


@dataclass(frozen=True)
class CacheAOTInput(d.AOTInput):
    """A cache that a pass lifts out of the graph into an input."""

    target: str

    def expr(self) -> str:
        return f"cache[{self.target!r}]"


@dataclass(frozen=True)
class ReducedGradAOTOutput(d.DifferentiableAOTOutput):
    """A gradient that a pass has summed over all ranks."""

    grad_of: d.DifferentiableAOTInput

    def expr(self) -> str:
        return f"__reduced_grad({self.grad_of.expr()})"


class PassIndex(JointGraphIndex):
    """An index that knows the two."""

    def input_kind(self, desc: d.AOTInput) -> InputKind:
        return InputKind.BUFFER if isinstance(desc, CacheAOTInput) else super().input_kind(desc)

    def output_kind(self, desc: d.AOTOutput) -> OutputKind:
        return OutputKind.GRAD if isinstance(desc, ReducedGradAOTOutput) else super().output_kind(desc)


def test_an_unknown_input_class_is_other(mlp: Sample) -> None:
    """An input of a class that nobody gave a kind is ``OTHER``: in ``inputs``, and in no view of a kind."""
    graph = mlp.copy().graph
    placeholder(graph, "primals_2").meta["desc"] = CacheAOTInput("first.bias")
    graph.output_node().meta["desc"][2] = d.PlainAOTOutput(1)
    index = JointGraphIndex(graph)
    record = index.inputs[CacheAOTInput("first.bias")]
    assert (record.kind, record.name) == (InputKind.OTHER, "first.bias")
    assert list(index.params) == ["first.weight", "second.weight", "second.bias"]
    assert dict(index.buffers) == {}


def test_input_kind_files_a_class_of_ones_own(mlp: Sample) -> None:
    """An input whose class is given the kind of buffers is in ``buffers``, under its ``target``."""
    graph = mlp.copy().graph
    placeholder(graph, "primals_2").meta["desc"] = CacheAOTInput("first.bias")
    graph.output_node().meta["desc"][2] = d.PlainAOTOutput(1)
    index = PassIndex(graph)
    assert list(index.buffers) == ["first.bias"]
    record = index.buffers["first.bias"]
    assert isinstance(record, Input)
    assert (record.kind, record.desc) == (InputKind.BUFFER, CacheAOTInput("first.bias"))
    assert record.node is placeholder(graph, "primals_2")


def test_an_unknown_output_class_is_other(mlp: Sample) -> None:
    """A gradient under a descriptor that the index doesn't know is ``OTHER``, and links to nothing."""
    graph = mlp.copy().graph
    desc = ReducedGradAOTOutput(d.ParamAOTInput("first.weight"))
    graph.output_node().meta["desc"][1] = desc
    index = JointGraphIndex(graph)
    assert (index.outputs[desc].kind, index.outputs[desc].grad_of) == (OutputKind.OTHER, None)
    assert index.params["first.weight"].grad is None


def test_output_kind_links_a_class_of_ones_own(mlp: Sample) -> None:
    """A gradient whose class is given the kind of gradients is in ``grads``, and linked both ways."""
    graph = mlp.copy().graph
    desc = ReducedGradAOTOutput(d.ParamAOTInput("first.weight"))
    graph.output_node().meta["desc"][1] = desc
    index = PassIndex(graph)
    param = index.params["first.weight"]
    assert index.grads[param.desc] is param.grad is index[desc]
    assert index[desc].grad_of is param
    assert index[desc].kind is OutputKind.GRAD


def test_a_kind_that_does_not_fit_is_refused(mlp: Sample) -> None:
    """A class that is given a kind, and lacks the field that says to whom it belongs, is refused by name."""

    class Wrong(JointGraphIndex):
        def output_kind(self, desc: d.AOTOutput) -> OutputKind:
            return OutputKind.GRAD

    with pytest.raises(JointGraphError, match=r"PlainAOTOutput was given the kind .*no 'grad_of'"):
        Wrong(mlp.joint)


def test_two_values_under_one_name_are_refused(mlp: Sample) -> None:
    """A name that would find either of two values finds neither, and both are named."""

    class AllParams(JointGraphIndex):
        def input_kind(self, desc: d.AOTInput) -> InputKind:
            return InputKind.PARAM if isinstance(desc, d.BufferAOTInput) else super().input_kind(desc)

    graph = mlp.copy().graph
    placeholders = graph.find_nodes(op="placeholder")
    with graph.inserting_before(placeholders[0]):
        graph.placeholder("twin").meta["desc"] = d.BufferAOTInput("first.weight")
    index = AllParams(graph)
    with pytest.raises(JointGraphError, match=r"both be params\['first\.weight'\]"):
        index.params["first.weight"]
    assert index[d.ParamAOTInput("first.weight")].kind is InputKind.PARAM
