"""Everything of torch's private API that membench relies on, in one place.

No other module names a private attribute of torch. Objects are re-exported as they are, so that a hot loop pays for no
wrapper. `tests/core/test_torch_internals.py` checks each of them: it fails where a release of torch changes one.

- ``FakeTensor(mode, meta, device)``: a tensor on the meta device that claims to be on another, and the `FakeTensorMode`
  under which it runs. Its exceptions carry the operator as ``func``; its module logs under ``FAKE_TENSOR_LOGGER``.
- ``TorchDispatchMode``: sees every ATen operator below autograd.
- ``no_dispatch``: a context in which no dispatch mode is active.
- ``tree_flatten``, ``tree_leaves``, ``tree_map``, ``tree_map_only``: nested tuples, lists and dicts of tensors.
- ``suggest_memory_format``: channels last or contiguous, as a kernel chooses from a tensor's strides.
- ``OpOverload``: an ATen operator with its overload; ``flop_registry``: formulas of operations by overload packet.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter, methodcaller
from sys import _getframe as frame_of
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.cuda import _POOL_HANDLE
from torch.distributions import Distribution
from torch.nn.modules import module as _modules
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import checkpoint
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import (
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_map,
    tree_map_only,
)
from torch.utils.flop_counter import flop_registry

__all__ = [
    "FAKE_TENSOR_LOGGER",
    "FUSED_ATTENTION",
    "FUSED_ENCODER_LAYER",
    "HOOKS_OF_EVERY_MODULE",
    "MODULE_ATTRIBUTES",
    "WEIGHT_HOOKS",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "GraphPool",
    "OpOverload",
    "StopRecomputation",
    "TorchDispatchMode",
    "UnsupportedOperatorException",
    "autocast",
    "autocast_dtype",
    "clear_cublas_workspaces",
    "compiled_calls_noted",
    "conjugate_view",
    "convolution_kernel",
    "copy_to",
    "cudnn_batch_norm_reserve_bytes",
    "flash_attention",
    "flop_registry",
    "is_compiled",
    "is_profiled",
    "keep_gpu_busy",
    "key_path",
    "masked_softmax",
    "memory_efficient_attention",
    "module_hooks",
    "module_members",
    "multiply_each",
    "negative_view",
    "next_sequence_number",
    "no_dispatch",
    "operator_function",
    "operator_schema",
    "regions_run_by",
    "saved_tensor",
    "sequence_number",
    "softmax_into",
    "split_heads",
    "storage_address",
    "suggest_memory_format",
    "swapped_tensors",
    "tensor_version",
    "tensors_of",
    "torch_function_modes",
    "tree_flatten",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_map_only",
    "unfused_attention",
    "view_base",
    "without_autocast",
    "without_cudnn",
    "without_saved_tensor_hooks",
    "without_torch_function_modes",
    "without_value_checks",
]  # fmt: skip

GraphPool = _POOL_HANDLE
"""Type of the name of a memory pool, as `torch.cuda.graph_pool_handle` returns it."""

FAKE_TENSOR_LOGGER = "torch._subclasses.fake_tensor"
"""Name of the logger that prints the traceback of a shape function's error."""

view_base: Callable[[Tensor], Tensor | None] = attrgetter("_base")
"""Return the tensor that autograd knows a tensor to be a view of, if any."""

storage_address: Callable[[torch.UntypedStorage], int] = attrgetter("_cdata")
"""Return the address of a storage's C++ object, unique while it lives; a fake tensor's data has no address."""

operator_schema: Callable[[OpOverload], Any] = attrgetter("_schema")
"""Return an operator's schema: ``arguments`` and ``returns``, each with ``name`` and ``alias_info``."""

operator_function: Callable[[OpOverload], Callable[..., Any]] = attrgetter("_op")
"""Return the function that an operator's object calls: a call of it takes less time."""

tensor_version: Callable[[Tensor], int] = attrgetter("_version")
"""Return how often a tensor's memory has been overwritten, as autograd counts it."""

sequence_number: Callable[[Any], int] = methodcaller("_sequence_nr")
"""Return the number of an autograd node, in the order in which nodes were made."""

next_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
"""Return the number that the next autograd node of this thread will have."""


def saved_tensor(node: Any, argument: str) -> Tensor | None:
    """Return what an autograd node has saved of an argument of its operator. Hooks that pack tensors do not see numbers."""
    saved: Tensor | None = getattr(node, f"_saved_{argument}", None)
    return saved


conjugate_view: Callable[[Tensor], Tensor] = torch._conj
negative_view: Callable[[Tensor], Tensor] = torch._neg_view
"""Views whose elements are conjugated or negated when they are read."""

WEIGHT_HOOKS = (attrgetter("_backward_hooks"), attrgetter("_post_accumulate_grad_hooks"))
"""Each returns the hooks on a parameter's gradient; None or empty without any."""

MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Names of the attributes that torch keeps in every module."""

module_hooks: Callable[[nn.Module], tuple[dict[int, Any], ...]] = attrgetter(
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
)
"""Return the dicts of a module's hooks, which stay the same objects while hooks come and go."""

HOOKS_OF_EVERY_MODULE: tuple[dict[int, Any], ...] = attrgetter(
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)(_modules)
"""The dicts of hooks that run at every module's call, such as `torch.nn.modules.module.register_module_forward_hook` adds."""

module_members: Callable[[nn.Module], tuple[dict[str, Any], ...]] = attrgetter(
    "_modules", "_parameters", "_buffers"
)
"""Return the dicts of a module's own children, weights and buffers, which stay the same objects."""

multiply_each: Callable[[list[Tensor], float], tuple[Tensor, ...]] = torch._foreach_mul
"""Return the product of each tensor and a number, by a single operator."""

copy_to: OpOverload = torch.ops.aten._to_copy.default
"""The operator below ``Tensor.to``."""

flash_attention = torch.ops.aten._scaled_dot_product_flash_attention
memory_efficient_attention = torch.ops.aten._scaled_dot_product_efficient_attention
unfused_attention = torch.ops.aten._scaled_dot_product_attention_math
"""The operators of which ``scaled_dot_product_attention`` calls one, on a GPU; the first output is the result."""

FUSED_ATTENTION: OpOverload = torch.ops.aten._native_multi_head_attention.default
FUSED_ENCODER_LAYER: OpOverload = torch.ops.aten._transformer_encoder_layer_fwd.default
"""The operators that `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` call in evaluation without gradients."""

split_heads: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]] = (
    torch.ops.aten._transform_bias_rescale_qkv.default
)
softmax_into: Callable[..., Tensor] = torch.ops.aten._softmax.out
masked_softmax: Callable[..., Tensor] = torch.ops.aten._masked_softmax.default
"""Operators of which the first consists."""

torch_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
"""Return how many `TorchFunctionMode` are active in this thread."""

without_torch_function_modes: Callable[[], AbstractContextManager[None]] = torch._C.DisableTorchFunction
"""Return a context in which torch's functions hand themselves to no mode and no subclass of tensors."""

key_path: Callable[[Any], str] = keystr
"""Return a leaf's path in the notation of Python, ``[0]['mask']``."""

keep_gpu_busy: Callable[[int], None] = torch.cuda._sleep
"""Issue a kernel to the current stream that spins for that many cycles of the GPU's clock."""


_ALLOCATIONS_ONLY = ProfilerConfig(
    ProfilerState.CPU,
    report_input_shapes=False,
    profile_memory=True,
    with_stack=False,
    with_flops=False,
    with_modules=False,
    experimental_config=_ExperimentalConfig(),
)


def convolution_kernel(
    images: Tensor, weight: Tensor, *geometry: Any, bias_sizes: list[int] | None = None
) -> str:
    """Return the name of the kernel with which torch computes a convolution, ``"Slow2d"``.

    Args:
        geometry: stride, padding, dilation, transposed, output padding and groups, as ``aten.convolution`` takes them.
    """
    return torch._C._select_conv_backend(images, weight, None, *geometry, bias_sizes).name


def cudnn_batch_norm_reserve_bytes(images: Tensor) -> int:
    """Return the bytes that cuDNN's batch norm reserves in training for its backward; needs a GPU."""
    return int(torch._C._get_cudnn_batch_norm_reserve_space_size(images, True))  # type: ignore[attr-defined]


def clear_cublas_workspaces() -> None:
    """Give back the workspaces that cuBLAS keeps for each stream."""
    torch._C._cuda_clearCublasWorkspaces()


is_profiled: Callable[[], bool] = torch._C._autograd._profiler_enabled
"""Return whether a profiler runs in this thread."""


class MemoryRecorder:
    """Allocations of several threads on one clock, by torch's CPU allocator.

    What was allocated before, or by a thread that is not recorded, is left out. By autograd's first profiler:
    `torch.profiler` starts libkineto, which prints to the terminal and ends a profile that runs in the process already.
    """

    def __init__(self) -> None:
        self._of_threads: list[Any] = []  # lists of raw events

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record this thread in a block; no profiler may run in it."""
        torch._C._autograd._enable_profiler_legacy(_ALLOCATIONS_ONLY)
        try:
            yield
        finally:
            self._of_threads += torch._C._autograd._disable_profiler_legacy()

    def changes_bytes(self) -> list[int]:
        """Return bytes allocated or, negative, freed, in the order of time."""
        events = [event for thread in self._of_threads for event in thread]
        changes = [event for event in events if event.kind() == "memory_alloc"]
        changes.sort(key=events[0].cpu_elapsed_us)
        return [event.cpu_memory_usage() for event in changes]


def tree_leaves_with_path(tree: Any) -> list[tuple[Any, Any]]:
    """Return the leaves of nested containers, each after its path; see `key_path`."""
    return tree_flatten_with_path(tree)[0]


@contextmanager
def without_cudnn() -> Iterator[None]:
    """Switch cuDNN off, but not as `torch.backends` does, which sets TF32 as well."""
    has_cudnn = torch._C._get_cudnn_enabled()
    torch._C._set_cudnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_cudnn_enabled(has_cudnn)


@contextmanager
def autocast(device_type: str, dtype: torch.dtype) -> Iterator[None]:
    """Cast as `torch.autocast` does, also for a device that this machine lacks, where that would switch itself off."""
    before = (
        torch.is_autocast_enabled(device_type),
        torch.get_autocast_dtype(device_type),
        torch.is_autocast_cache_enabled(),
    )

    def set_state(is_enabled: bool, dtype: torch.dtype, is_cached: bool) -> None:
        torch.set_autocast_enabled(device_type, is_enabled)
        torch.set_autocast_dtype(device_type, dtype)
        torch.set_autocast_cache_enabled(is_cached)

    set_state(True, dtype, True)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        set_state(*before)


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """Return the dtype that autocast casts to now, None outside of it."""
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None


@contextmanager
def without_autocast(device_type: str) -> Iterator[None]:
    """Switch autocast off for a device, also for one that this machine lacks."""
    before = torch.is_autocast_enabled(device_type)
    torch.set_autocast_enabled(device_type, False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device_type, before)


_top_hooks: Callable[[bool], Any] = torch._C._autograd._top_saved_tensors_default_hooks


@contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Set hooks on saved tensors aside, such as those within `torch.utils.checkpoint`, which would call the module again."""
    hooks: list[Any] = []
    while (top := _top_hooks(True)) is not None:
        hooks.append(top)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


@contextmanager
def without_value_checks() -> Iterator[None]:
    """Keep torch's distributions from validating their arguments: fake tensors have no values."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


@contextmanager
def regions_run_by(
    again: Callable[[Callable[..., Any]], Callable[..., Any]],
    enter_backward: Callable[[Sequence[Tensor]], None],
    *,
    on_device: bool,
) -> Iterator[None]:
    """Run the regions of `torch.utils.checkpoint`, of both kinds, by functions of the caller.

    Args:
        again: takes the function that runs a region again, when the region first runs, and returns what is called instead.
        enter_backward: called with the roots of each backward pass within a backward pass, as reentrant regions have.
        on_device: restore random state and autocast of the arguments' device, which must be one of this machine's.
    """

    def frame(recompute: Callable[..., Any], *args: Any) -> Any:
        return frames(again(recompute), *args)

    def forward(ctx: Any, function: Callable[..., Any], *args: Any) -> Any:
        repeated = again(function)
        output = of_function.forward(ctx, function, *args)
        ctx.run_function = repeated
        return output

    def backward(ctx: Any, *gradients: Any) -> Any:
        with patch.object(torch.autograd, "backward", nested):
            return of_function.backward(ctx, *gradients)

    def nested(tensors: Any, gradients: Any) -> None:
        enter_backward(tensors)
        original(tensors, gradients)

    frames, original = checkpoint._CheckpointFrame, torch.autograd.backward
    of_function = SimpleNamespace(
        forward=checkpoint.CheckpointFunction.forward, backward=checkpoint.CheckpointFunction.backward
    )
    inferred = checkpoint._infer_device_type
    with (
        patch.object(checkpoint, "_infer_device_type", inferred if on_device else lambda *_: "cpu"),
        patch.object(checkpoint, "_CheckpointFrame", frame),
        patch.object(checkpoint.CheckpointFunction, "forward", staticmethod(forward)),
        patch.object(checkpoint.CheckpointFunction, "backward", staticmethod(backward)),
    ):
        yield


StopRecomputation: type[Exception] = checkpoint._StopRecomputationError
"""Raised where a region that runs again has all that the backward pass needs."""


def tensors_of(tree: Any) -> list[Tensor]:
    """Return the tensors in nested containers."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


swapped_tensors: Callable[..., AbstractContextManager[None]] = _reparametrize_module
"""Return a context in which a module has other tensors, by name, as its weights and buffers."""


def is_compiled(module: nn.Module) -> bool:
    """Return whether a module is what `torch.compile` returns for one, or was compiled in place by its method."""
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None


@contextmanager
def compiled_calls_noted(note: Callable[[Callable[..., Any]], None]) -> Iterator[None]:
    """Call a function with what was given to `torch.compile`, whenever it is called and is not to run as it is.

    A module is given as its method. `torch.compiler.disable` and ``set_stance("force_eager")`` run functions as they are.
    """
    from torch._dynamo import eval_frame  # takes a second, which imports of membench need not wait for

    chosen_by_stance = eval_frame._callback_from_stance

    def noting(callback: Any) -> Any:
        chosen = chosen_by_stance(callback)
        if callable(chosen) and (function := frame_of(1).f_locals.get("fn")) is not None:
            note(function)
        return chosen

    with patch.object(eval_frame, "_callback_from_stance", noting):
        yield
