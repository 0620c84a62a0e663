"""Ways of capturing a graph with AOTAutograd: the raw module, torch.compile, partitioned halves, symbolic sizes."""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any, NamedTuple

import attrs
import torch
import torch.distributed as dist
from torch import fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.source import ConstantSource
from torch._functorch._aot_autograd.schemas import JointWithDescriptors
from torch._functorch._aot_autograd.subclass_utils import compute_inner_mutated_inp_indices_from_subclass_meta
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
    SubclassSymbolicContext,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

__all__ = [
    "Compiled",
    "Halves",
    "JointWithDescriptors",
    "compiled",
    "default_partition",
    "fake_mesh",
    "joint",
    "min_cut_rematerialization_partition",
    "partition",
    "symbolic",
    "torchs_own_warnings",
]

Partition = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]


class Halves(NamedTuple):
    """What a partitioner makes of a joint graph."""

    forward: fx.GraphModule
    backward: fx.GraphModule


@attrs.define
class Compiled:
    """The graphs of one torch.compile: the joint one and its halves, or an inference graph."""

    joint: fx.GraphModule | None = None
    halves: Halves | None = None
    """As the partitioner returned them: AOTAutograd then drops backward inputs that nothing reads."""
    inference: fx.GraphModule | None = None


def joint(module: nn.Module, *args: Any, **kwargs: Any) -> JointWithDescriptors:
    """Capture a module called with these arguments: parameters and buffers have their true names.

    Without gradients it is an inference graph. Fake mode is left again.
    """
    with ExitStack() as stack, torchs_own_warnings():
        return aot_export_joint_with_descriptors(stack, module, args, kwargs)


def partition(captured: JointWithDescriptors, how: Partition = default_partition) -> Halves:
    """The halves of a joint graph, cut from a copy: halves share ``meta`` with what they are cut from."""
    meta = captured._aot_state.fw_metadata
    subclasses = captured._aot_graph_capture.maybe_subclass_meta
    inner = meta if subclasses is None else subclasses.fw_metadata
    forward_outputs = (
        len(compute_inner_mutated_inp_indices_from_subclass_meta(meta, inner))
        + inner.num_outputs
        + inner.num_intermediate_bases
        + inner.num_outputs_rng_offset
        + len(meta.tokens)
    )
    with captured.fake_mode, torchs_own_warnings():
        return Halves(*how(copy.deepcopy(captured.graph_module), (), num_fwd_outputs=forward_outputs))


def compiled(
    function: Callable[..., Any],
    *args: Any,
    dynamic: bool | None = None,
    how: Partition = default_partition,
    keep_mutations: bool = True,
    backward: bool = True,
) -> Compiled:
    """The graphs of ``torch.compile(function)(*args)``: every tensor is a plain input there, names are lost.

    Args:
        function: a function or module that Dynamo captures in one graph.
        args: its arguments.
        dynamic: as for ``torch.compile``.
        how: the partitioner.
        keep_mutations: leave mutations of inputs in the graph as ``copy_`` where autograd needs no new value.
        backward: run backward, too.
    """
    graphs: list[Compiled] = []

    def backend(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        graphs.append(Compiled())

        def compile_inference(module: fx.GraphModule, _: Sequence[Any]) -> Any:
            graphs[-1].inference = copy.deepcopy(module)
            return make_boxed_func(module.forward)

        def compile_half(module: fx.GraphModule, _: Sequence[Any]) -> Any:
            return make_boxed_func(module.forward)

        def cut(module: fx.GraphModule, joint_inputs: Any, **options: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
            graphs[-1].joint = copy.deepcopy(module)
            halves = how(module, joint_inputs, **options)
            graphs[-1].halves = Halves(*map(copy.deepcopy, halves))
            return halves

        return aot_autograd(
            fw_compiler=compile_half,
            bw_compiler=compile_half,
            inference_compiler=compile_inference,
            partition_fn=cut,
            keep_inference_input_mutations=keep_mutations,
        )(module, example_inputs)

    torch._dynamo.reset()
    try:
        with torchs_own_warnings():
            results = torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True)(*args)
            losses = [one.sum() for one in tree_leaves(results) if isinstance(one, torch.Tensor) and one.requires_grad]
            if backward and losses:
                torch.autograd.backward(losses)
    finally:
        torch._dynamo.reset()
    (graph,) = graphs
    return graph


def symbolic(*args: Any) -> tuple[Any, ...]:
    """The arguments with their tensors replaced by fake ones of symbolic sizes; equal sizes share a symbol."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    return tuple(
        mode.from_tensor(arg, source=ConstantSource(f"arg{i}"), symbolic_context=_symbolic_context(arg))
        if isinstance(arg, torch.Tensor)
        else arg
        for i, arg in enumerate(args)
    )


def _symbolic_context(tensor: torch.Tensor) -> StatelessSymbolicContext[Any, Any]:
    sizes = [DimDynamic.DUCK] * tensor.dim()
    if not is_traceable_wrapper_subclass(tensor):
        return StatelessSymbolicContext(dynamic_sizes=sizes)
    inner = {name: _symbolic_context(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0]}
    return SubclassSymbolicContext(dynamic_sizes=sizes, tensor_source=ConstantSource("arg"), inner_contexts=inner)


@contextmanager
def torchs_own_warnings() -> Iterator[None]:
    """Lets pass the warnings that torch's own code gives rise to during a capture; all others stay errors."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"The \.grad attribute of a Tensor that is not a leaf", UserWarning)
        warnings.filterwarnings("ignore", r".* should not be instantiated\. Methods on autograd", DeprecationWarning)
        warnings.filterwarnings("ignore", r"`torch\.jit\.script_method` is deprecated", DeprecationWarning)
        warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
        yield


@contextmanager
def fake_mesh(*shape: int) -> Iterator[DeviceMesh]:
    """A device mesh of this shape on a process group that exists in this process alone and never communicates."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=prod(shape))
    try:
        yield init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp")[-len(shape) :])
    finally:
        dist.destroy_process_group()
