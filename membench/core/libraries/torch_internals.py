"""Everything of torch's private API that membench relies on, in one place.

No other module but `torch_contexts`, `torch_devices`, `torch_fake_tensors` and `torch_inductor` names a private
attribute of torch. Objects are re-exported as they are, so that a hot loop pays for no wrapper.
`tests/core/libraries/test_torch_internals.py` checks each of them: it fails where a release of torch changes one.

- ``FakeTensor(mode, meta, device)``: a tensor on the meta device that claims to be on another, and the `FakeTensorMode`
  under which it runs. Its exceptions carry the operator as ``func``; its module logs under ``FAKE_TENSOR_LOGGER``.
- ``TorchDispatchMode``: sees every ATen operator below autograd.
- ``no_dispatch``: a context in which no dispatch mode is active.
- ``tree_flatten``, ``tree_leaves``, ``tree_map``, ``tree_map_only``: nested tuples, lists and dicts of tensors;
  ``register_container`` makes another class such a container.
- ``suggest_memory_format``: channels last or contiguous, as a kernel chooses from a tensor's strides.
- ``OpOverload``: an ATen operator with its overload, ``OpOverloadPacket``: with all of them, as ``torch.ops`` has it;
  ``flop_formulas``: formulas of operations by overload packet.
"""

from collections.abc import Callable
from functools import cache, partial
from operator import attrgetter, methodcaller
from traceback import walk_stack
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DispatchKey
from torch._C._distributed_c10d import _resolve_process_group
from torch._higher_order_ops.flex_attention import flex_attention as _flex_attention
from torch._higher_order_ops.flex_attention import flex_attention_fake_impl
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.distributed.distributed_c10d import GroupName
from torch.nn.modules import module as _modules
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import (
    GetAttrKey,
    keystr,
    register_pytree_node,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_map,
    tree_map_only,
)

__all__ = [
    "COLLECTIVE_NAMESPACES",
    "FAKE_TENSOR_LOGGER",
    "FLEX_ATTENTION",
    "FUSED_ATTENTION",
    "FUSED_ENCODER_LAYER",
    "HOOKS_OF_EVERY_MODULE",
    "MODULE_ATTRIBUTES",
    "WAIT_FOR_COLLECTIVE",
    "WEIGHT_HOOKS",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "TorchDispatchMode",
    "UnsupportedOperatorException",
    "all_to_all",
    "allocator_settings",
    "autograd_has_threads",
    "compiled_depth",
    "composed_kernel",
    "conjugate_view",
    "copy_to",
    "cudnn_attention",
    "flash_attention",
    "flex_attention_shapes",
    "flop_formulas",
    "fsdp_groups",
    "fsdp_reshards_by_default",
    "fsdp_state",
    "has_other_users",
    "is_collective",
    "is_compiled",
    "is_composite",
    "is_of_torch",
    "is_wrapper_subclass",
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
    "process_group",
    "read_number",
    "register_container",
    "saved_tensor",
    "sequence_number",
    "softmax_into",
    "split_heads",
    "storage_address",
    "suggest_memory_format",
    "tensor_users",
    "tensor_version",
    "tensors_of",
    "torch_function_modes",
    "tree_flatten",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_map_only",
    "uncompiled_flex_attention",
    "unfused_attention",
    "unwrapped",
    "view_base",
    "wait_for_collective",
    "wrapped_again",
]  # fmt: skip

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

COLLECTIVE_NAMESPACES = frozenset({"_c10d_functional", "_dtensor"})
"""Namespaces of functional collectives, which return a tensor that is filled once it has been waited for."""

WAIT_FOR_COLLECTIVE = "_c10d_functional.wait_tensor.default"
"""The operator that waits for a collective, whose result it takes and returns."""


def is_collective(operator: OpOverload) -> bool:
    """Return whether an operator is a functional collective, or the wait for one."""
    return operator.namespace in COLLECTIVE_NAMESPACES


def process_group(group: Any) -> Any:
    """Return a group of processes, or the one of a name, as functional collectives take it."""
    return _resolve_process_group(GroupName(group)) if isinstance(group, str) else group


def wait_for_collective(result: Tensor) -> None:
    """Wait until a functional collective has filled a tensor that it has returned; on a GPU its current stream does."""
    torch.ops._c10d_functional.wait_tensor(result)


def all_to_all(rows: Tensor, group: Any) -> Tensor:
    """Send equal parts of the rows to a group's ranks, and return what each sends; the gradient goes back."""
    from torch.distributed import _functional_collectives  # takes a second

    return _functional_collectives.all_to_all_single_autograd(rows, None, None, group)


_NAMESPACES_OF_TORCH = frozenset({"aten", "prim", "prims", "c10d", "mkldnn", "quantized", *COLLECTIVE_NAMESPACES})


def is_of_torch(operator: str) -> bool:
    """Return whether an operator, ``"aten.mm.default"``, is torch's own and not registered by a library."""
    return operator.partition(".")[0] in _NAMESPACES_OF_TORCH


def composed_kernel(operator: HigherOrderOperator) -> Callable[..., Any] | None:
    """Return the function in which a higher-order operator calls others, where it is not compiled; None without one."""
    return operator.py_kernels.get(DispatchKey.CompositeExplicitAutograd)


@cache
def is_composite(operator: OpOverload) -> bool:
    """Return whether an operator consists of others, which its ``decompose`` calls, and has no kernels of its own."""
    has_kernel = partial(torch._C._dispatch_has_kernel_for_dispatch_key, operator.name())
    return has_kernel("CompositeImplicitAutograd") and not (has_kernel("CPU") or has_kernel("CUDA"))


tensor_version: Callable[[Tensor], int] = attrgetter("_version")
"""Return how often a tensor's memory has been overwritten, as autograd counts it."""

tensor_users: Callable[[Tensor], int] = methodcaller("_use_count")
"""Return how many references torch has to a tensor, of which Python's objects together are one."""


def has_other_users(tensor: Tensor) -> bool:
    """Return whether another tensor shares the memory of one that has no views in Python."""
    storage = tensor.untyped_storage()  # one reference, and the tensor's
    return torch._C._storage_Use_Count(storage_address(storage)) > 2


sequence_number: Callable[[Any], int] = methodcaller("_sequence_nr")
"""Return the number of an autograd node, in the order in which nodes were made."""

next_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
"""Return the number that the next autograd node of this thread will have."""


def saved_tensor(node: Any, argument: str) -> Tensor | None:
    """Return what an autograd node has saved of an argument of its operator.

    Hooks that pack tensors do not see numbers.
    """
    saved: Tensor | None = getattr(node, f"_saved_{argument}", None)
    return saved


is_wrapper_subclass: Callable[[object], bool] = is_traceable_wrapper_subclass
"""Return whether a tensor is stored in other tensors, from which it can be made again."""


def unwrapped(tensor: Tensor) -> dict[str, Tensor]:
    """Return the tensors that a wrapper subclass wraps, by the names of its attributes."""
    return {name: part for name, part in _wrapped(tensor).items() if isinstance(part, Tensor)}


def wrapped_again(tensor: Tensor, parts: dict[str, Tensor]) -> Tensor:
    """Return a wrapper subclass like another one, of the same size, around other tensors."""
    _, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    kept = _wrapped(tensor) | parts
    made: Tensor = type(tensor).__tensor_unflatten__(kept, context, tensor.size(), tensor.stride())  # type: ignore[attr-defined]
    return made


def _wrapped(tensor: Tensor) -> dict[str, Any]:
    """Return what a wrapper subclass wraps by name: tensors, and objects such as the mesh of a `DTensor`."""
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    return {name: getattr(tensor, name) for name in names}


conjugate_view: Callable[[Tensor], Tensor] = torch._conj
negative_view: Callable[[Tensor], Tensor] = torch._neg_view
"""Views whose elements are conjugated or negated when they are read."""

fsdp_state: Callable[[nn.Module], Any] = methodcaller("_get_fsdp_state")
"""Return what `fully_shard` keeps of a module that it wraps."""
fsdp_groups: Callable[[Any], list[Any]] = attrgetter("_fsdp_param_groups")
"""Return such a state's groups of weights: ``fsdp_params``, ``mesh_info``, ``post_forward_mesh_info`` of each."""

fsdp_reshards_by_default: Callable[[Any], bool | None] = attrgetter("_auto_reshard_after_forward")
"""Return whether such a state gives weights back after the forward pass unless it is that of the root."""

WEIGHT_HOOKS: tuple[Callable[[Tensor], dict[int, Any] | None], ...] = (
    attrgetter("_backward_hooks"),
    attrgetter("_post_accumulate_grad_hooks"),
)
"""Return a dict of hooks on a parameter's gradient, each of one kind; None or empty without any."""

MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Names of the attributes that torch keeps in every module."""

module_hooks: Callable[[nn.Module], tuple[dict[int, Any], ...]] = attrgetter(
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
)
"""Return the dicts of a module's hooks, which stay the same objects while hooks come and go."""

HOOKS_OF_EVERY_MODULE: tuple[dict[int, Any], ...] = attrgetter(
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks"
)(_modules)
"""The dicts of hooks that run at every module's call, such as ``register_module_forward_hook`` adds."""

module_members: Callable[[nn.Module], tuple[dict[str, Any], ...]] = attrgetter("_modules", "_parameters", "_buffers")
"""Return the dicts of a module's own children, weights and buffers, which stay the same objects."""

multiply_each: Callable[[list[Tensor], float], tuple[Tensor, ...]] = torch._foreach_mul
"""Return the product of each tensor and a number, by a single operator."""

read_number: OpOverload = torch.ops.aten._local_scalar_dense.default
"""The operator below ``Tensor.item``."""

copy_to: OpOverload = torch.ops.aten._to_copy.default
"""The operator below ``Tensor.to``."""

flash_attention = torch.ops.aten._scaled_dot_product_flash_attention
memory_efficient_attention = torch.ops.aten._scaled_dot_product_efficient_attention
cudnn_attention = torch.ops.aten._scaled_dot_product_cudnn_attention
unfused_attention = torch.ops.aten._scaled_dot_product_attention_math
"""The operators of which ``scaled_dot_product_attention`` calls one, on a GPU; the first output is the result."""

FUSED_ATTENTION: OpOverload = torch.ops.aten._native_multi_head_attention.default
FUSED_ENCODER_LAYER: OpOverload = torch.ops.aten._transformer_encoder_layer_fwd.default
"""The operators that `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` call in evaluation without gradients."""

FLEX_ATTENTION = _flex_attention
"""The higher-order operator below ``torch.nn.attention.flex_attention``, which takes functions of scores."""

uncompiled_flex_attention: Callable[..., tuple[Tensor, Tensor, Tensor]] = _flex_attention.py_kernels[
    DispatchKey.CompositeExplicitAutograd
]
"""Computes it by other operators, from the scores of all pairs, as it runs where it is not compiled."""


def flex_attention_shapes(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return its empty output, logarithms of sums and largest scores."""
    output: tuple[Tensor, Tensor, Tensor] = flex_attention_fake_impl(
        query, key, value, lambda score, *_: score, (), 1.0, {}
    )
    return output


def compiled_depth() -> int:
    """Return how many functions of `torch.compile` are among the callers; in a trace those run as they are written."""
    codes = ((frame.f_code.co_name, frame.f_globals.get("__name__")) for frame, _ in walk_stack(None))
    return sum(code == ("compile_wrapper", _EVAL_FRAME) for code in codes)


_EVAL_FRAME = "torch._dynamo.eval_frame"


split_heads: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor, Tensor]] = (
    torch.ops.aten._transform_bias_rescale_qkv.default
)
softmax_into: Callable[..., Tensor] = torch.ops.aten._softmax.out
masked_softmax: Callable[..., Tensor] = torch.ops.aten._masked_softmax.default
"""Operators of which the first consists."""

autograd_has_threads: Callable[[], bool] = torch._C._is_multithreading_enabled
"""Return whether the backward pass of a GPU runs in a thread of its own."""

allocator_settings: Callable[[], str] = getattr(torch._C, "_accelerator_getAllocatorSettings", str)
"""Return this process's settings of the caching allocator, as in ``PYTORCH_ALLOC_CONF``, empty if none.

Torch 2.11 cannot be asked; there it is always empty."""

torch_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
"""Return how many `TorchFunctionMode` are active in this thread."""


key_path: Callable[[Any], str] = keystr
"""Return a leaf's path in the notation of Python, ``[0]['mask']``."""


def register_container(
    kind: type,
    flatten: Callable[[Any], tuple[Any, Any]],
    unflatten: Callable[[Any, Any], Any],
    names: Callable[[Any], tuple[str, ...]],
) -> None:
    """Make instances of a class containers, as tuples and dicts are.

    Args:
        flatten: returns the items of a container, and what else it consists of.
        unflatten: makes a container of both.
        names: returns for each item the attribute that it is to users.
    """

    def flatten_with_names(item: Any) -> tuple[list[tuple[Any, Any]], Any]:
        values, context = flatten(item)
        return [(GetAttrKey(name), value) for name, value in zip(names(item), values, strict=True)], context

    register_pytree_node(kind, flatten, unflatten, flatten_with_keys_fn=flatten_with_names)


def tree_leaves_with_path(tree: Any) -> list[tuple[Any, Any]]:
    """Return the leaves of nested containers, each after its path; see `key_path`."""
    return tree_flatten_with_path(tree)[0]


def tensors_of(tree: Any) -> list[Tensor]:
    """Return the tensors in nested containers."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def is_compiled(module: nn.Module) -> bool:
    """Return whether a module is what `torch.compile` returns for one, or was compiled in place by its method."""
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None


@cache
def flop_formulas() -> dict[OpOverloadPacket, Callable[..., int]]:
    """Return the registered formulas of operations; their module imports Triton, which a kept graph does not need."""
    from torch.utils.flop_counter import flop_registry

    return flop_registry
