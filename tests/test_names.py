"""What the index says of a name or an argument that has no input of its own."""

import pytest
import torch
from torch import nn
from torch._functorch._aot_autograd import descriptors as d

from jointgraph import JointGraphIndex, UnknownNameError
from tests.capture import default_partition, joint, partition
from tests.cases.tied import IDS, Tied
from tests.graphs import copy_of, entries, placeholder, set_outputs
from tests.models import Sample


class Spare(nn.Module):
    """A layer, and a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.spare = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        return y


class DoublesItsFirst(nn.Module):
    """Doubles its first argument in place, which the second shares a base with."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        return b * self.w


def tied_and_mutated() -> tuple[nn.Module, JointGraphIndex]:
    """A tied weight of which AOTAutograd keeps one name, as the program mutates it."""
    model = Tied(mutate=True)
    return model, JointGraphIndex(joint(model, IDS))


def two_views() -> tuple[torch.Tensor, torch.Tensor]:
    """Two overlapping views of one tensor that wants a gradient, and may be mutated."""
    base = torch.ones(4, 3, requires_grad=True).clone()
    return base[:3], base[1:]


def without_spare() -> JointGraphIndex:
    """The graph of `Spare` after a pass took out the parameter that nothing uses."""
    gm = copy_of(joint(Spare(), torch.randn(2, 3)).graph_module)
    node = placeholder(gm.graph, JointGraphIndex(gm).params["spare"].node.name)
    gm.graph.erase_node(node)
    return JointGraphIndex(gm, module=Spare())


def test_a_deduplicated_name_is_reported_as_such() -> None:
    """Asking for it says that it was deduplicated, and which input has the tensor."""
    _, index = tied_and_mutated()
    with pytest.raises(UnknownNameError, match=r"deduplicated it.* ParamAOTInput\(target='emb\.weight'\)"):
        index.params["head.weight"]


def test_a_module_resolves_a_deduplicated_name() -> None:
    """With ``module=``, the dropped name finds the record under the name that the capture kept."""
    model, index = tied_and_mutated()
    knowing = JointGraphIndex(index.graph, module=model)
    assert knowing.params["head.weight"] is knowing.params["emb.weight"]
    assert "head.weight" in knowing.params
    assert "head.weight" not in index.params


def test_a_resolved_name_is_not_listed_twice() -> None:
    """Iterating goes over the graph's own names."""
    model, index = tied_and_mutated()
    assert list(JointGraphIndex(index.graph, module=model).params) == ["emb.weight"]


def test_all_partial_gradients_of_a_tied_weight_are_reachable_from_each_name() -> None:
    """A record and its aliases have them all, and together they are the gradient that eager PyTorch computes."""
    index = JointGraphIndex(joint(Tied(), IDS))
    for name in ("emb.weight", "head.weight"):
        one = index.params[name]
        nodes = {record.grad.node for record in (one, *one.aliases) if record.grad is not None}
        assert nodes == {grad.node for grad in index.grads.values()}


@pytest.mark.parametrize("idx", [0, 1])
def test_an_argument_that_was_folded_into_a_view_base_is_reported_as_such(idx: int) -> None:
    """Both views say which base stands for them, the one that the base names and the one that it doesn't."""
    index = JointGraphIndex(joint(DoublesItsFirst(), *two_views()))
    base = d.ViewBaseAOTInput(d.PlainAOTInput(0))
    with pytest.raises(UnknownNameError, match="replaced it, a view, by the base") as caught:
        index.plain_inputs[idx]
    assert f"index[{base}]" in str(caught.value)
    assert index[base].mutation is not None


def test_a_graph_alone_names_the_base_that_an_argument_may_be_in() -> None:
    """Without the ``JointWithDescriptors``, only the view that the base names is certain."""
    index = JointGraphIndex(joint(DoublesItsFirst(), *two_views()).graph_module)
    with pytest.raises(UnknownNameError, match="replaced it, a view, by the base"):
        index.plain_inputs[0]
    with pytest.raises(UnknownNameError, match="may be one of the views"):
        index.plain_inputs[1]


def test_a_name_that_the_capture_never_had_is_reported_as_such() -> None:
    """The capture lists its arguments, so that a name that isn't among them never was."""
    _, index = tied_and_mutated()
    with pytest.raises(UnknownNameError, match="took in no such argument"):
        index.params["tail.weight"]
    with pytest.raises(UnknownNameError, match="took in no such argument"):
        index.plain_inputs[7]


def test_a_name_that_the_module_does_not_have_is_reported_as_such() -> None:
    """A module knows all of its names."""
    with pytest.raises(UnknownNameError, match="Spare has no parameter or buffer of that name"):
        without_spare().params["tail.weight"]


def test_a_name_that_the_traced_code_does_not_use_is_reported_as_such() -> None:
    """The module has it, and the graph doesn't."""
    with pytest.raises(UnknownNameError, match="Spare has it, but the traced code does not"):
        without_spare().params["spare"]


def test_a_frozen_constant_is_reported_as_such() -> None:
    """A parameter that a pass froze into the graph is no input, and the node that has it is named."""
    gm = copy_of(joint(Spare(), torch.randn(2, 3)).graph_module)
    gm.register_buffer("spare", torch.ones(2))
    node = placeholder(gm.graph, JointGraphIndex(gm).params["spare"].node.name)
    with gm.graph.inserting_before(node):
        constant = gm.graph.get_attr("spare")
    gm.graph.erase_node(node)
    with pytest.raises(UnknownNameError, match=f"a constant of the graph, in node {constant.name}"):
        JointGraphIndex(gm).params["spare"]


def test_an_input_that_was_removed_since_the_capture_is_reported_as_such() -> None:
    """The capture had the argument as an input of its own; the graph has it no longer."""
    captured = joint(Spare(), torch.randn(2, 3))
    index = JointGraphIndex(captured)
    index.graph.erase_node(index.params["spare"].node)
    with pytest.raises(UnknownNameError, match="something has removed it"):
        index.params["spare"]


def test_a_backward_graph_refers_to_its_forward_graph() -> None:
    """A backward graph takes only what it reads."""
    halves = partition(joint(Spare(), torch.randn(2, 3)), default_partition)
    with pytest.raises(UnknownNameError, match="index of its forward graph"):
        JointGraphIndex(halves.backward).params["layer.bias"]


def test_a_buffer_asked_for_as_a_parameter_is_found_where_it_is() -> None:
    """The error names the view that has it."""
    index = JointGraphIndex(joint(nn.BatchNorm1d(3), torch.randn(4, 3)))
    with pytest.raises(UnknownNameError, match=r"It is in buffers\."):
        index.params["running_mean"]


def test_what_a_subclass_leaves_out_is_reported_as_such() -> None:
    """A filter is no reason to look for a misspelling."""

    class NoLayers(JointGraphIndex):
        def keeps_input(self, desc: d.AOTInput) -> bool:
            return not desc.is_param()

    with pytest.raises(UnknownNameError, match=r"keeps_input\(\) of this index leaves it out"):
        NoLayers(joint(Spare(), torch.randn(2, 3))).params["layer.weight"]


def test_a_gradient_put_back_by_hand_is_found() -> None:
    """Asking again after an edit that adds the value needs no refresh."""
    gm = copy_of(joint(Spare(), torch.randn(2, 3)).graph_module)
    index = JointGraphIndex(gm)
    spare = index.params["spare"]
    values, descs = entries(gm.graph), list(gm.graph.output_node().meta["desc"])
    assert spare.grad is None
    set_outputs(gm.graph, [*values, spare.node], [*descs, d.GradAOTOutput(d.ParamAOTInput("spare"))])
    assert spare.grad is not None
    assert spare.grad.node is spare.node


def test_a_tied_name_that_the_graph_had_itself_finds_no_other(tied: Sample) -> None:
    """Raw capture has both, each with a part of the gradient: one that was removed is not the other."""
    index = JointGraphIndex(tied.copy(), module=tied.module)
    assert index.params["head.weight"] is not index.params["embed.weight"]
    head = index.params["head.weight"]
    head.node.replace_all_uses_with(index.params["embed.weight"].node)
    with index.edit() as edit:
        edit.remove([head, index.grads[head.desc]])
    assert "head.weight" not in index.params
    with pytest.raises(UnknownNameError, match="something has removed it from the graph since"):
        index.params["head.weight"]


def test_a_tied_name_that_the_index_leaves_out_finds_no_other(tied: Sample) -> None:
    """``keeps_input`` counts for each by itself."""

    class NoHead(JointGraphIndex):
        def keeps_input(self, desc: d.AOTInput) -> bool:
            return desc != d.ParamAOTInput("head.weight")

    index = NoHead(tied.copy(), module=tied.module)
    assert "embed.weight" in index.params
    assert "head.weight" not in index.params
