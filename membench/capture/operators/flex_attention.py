"""``flex_attention`` as `torch.compile` runs it on a GPU: a kernel for each pass, without scores of pairs.

Both are operators of membench's own, with torch's shapes: the forward pass makes the output, the logarithm of each
query's sum, and its largest score (``torch/_inductor/kernel/flex/flex_attention.py``). Blocks of pairs that the mask
leaves out are not computed: operations are counted in the other blocks, or in all of them if the mask depends on the
data of a step.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from membench.capture.gpu.virtual_gpu import VirtualGpu
from membench.core.errors import MembenchError
from membench.core.libraries.torch_contexts import index_by_tensors, without_dispatch_modes
from membench.core.libraries.torch_internals import (
    FakeTensor,
    OpOverloadPacket,
    compiled_depth,
    flex_attention_shapes,
    no_dispatch,
    tree_leaves,
    uncompiled_flex_attention,
)

Contents = Callable[[Tensor], Tensor | None]
"""Returns the values of a tensor that has the same in every step, else None."""

_COUNTS = (2, 4)
"""Positions in a block mask of the numbers of blocks computed in part and in full, for each row of blocks."""
_INDICES = 3
"""Position of the indices, whose last dimension is all blocks of a row."""


def flex_attention(gpu: VirtualGpu | None, contents: Contents, *arguments: Any) -> tuple[Tensor, ...]:
    """Run the kernel, or where the program does not compile it, the operators that it is made of then.

    Args:
        gpu: the GPU of the trace; None: the tensors' device is one of this machine's.
        arguments: arguments of torch's higher-order operator.

    Raises:
        MembenchError: a kernel would have to run, or the operators on a GPU that this machine does not need to have.
    """
    is_compiled = compiled_depth() > 0
    if gpu is None and is_compiled:
        raise MembenchError(
            "compiled flex_attention is a kernel that a step cannot run; predict it (membench.predict), or call it "
            "uncompiled"
        )
    if gpu is None:
        return uncompiled_flex_attention(*arguments)
    if not is_compiled:
        raise MembenchError(
            "flex_attention that is not compiled holds the scores of all pairs on a GPU; call "
            "torch.compile(flex_attention)"
        )
    return _as_kernel(gpu, contents, *arguments)


def _as_kernel(
    gpu: VirtualGpu,
    contents: Contents,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: tuple[Any, ...],
    *_: Any,
) -> tuple[Tensor, ...]:
    mask = [each for each in block_mask if isinstance(each, Tensor)]
    captured_by = torch.compiler.disable(_captured)  # which runs without modes, and would be compiled
    captured = [*captured_by(score_mod, 5, query), *captured_by(block_mask[-1], 4, query)]
    trained = [each for each in captured if each.requires_grad]
    others = [*(each for each in captured if not each.requires_grad), *mask]
    share = _computed_share(block_mask, contents)
    with gpu.outside():
        output: tuple[Tensor, ...] = torch.ops.membench.flex_attention(query, key, value, trained, others, share)
    return output


def _computed_share(block_mask: tuple[Any, ...], contents: Contents) -> float:
    """Return the share of blocks that are computed; 1 where it depends on the step's data."""
    computed = 0
    for counts in (block_mask[position] for position in _COUNTS):
        if counts is not None:
            known = contents(counts) if isinstance(counts, FakeTensor) else counts
            if known is None:
                return 1.0
            with no_dispatch():
                computed += int(known.sum())
    blocks = block_mask[_COUNTS[0]].numel() * block_mask[_INDICES].shape[-1]
    return computed / blocks


def _captured(function: Callable[..., Tensor], arguments: int, query: Tensor) -> list[Tensor]:
    """Return the tensors that a function of a score, or of indices, reads in addition to its arguments."""
    assert isinstance(query, FakeTensor)
    with without_dispatch_modes(), query.fake_mode, torch.no_grad(), index_by_tensors():
        indices = [torch.zeros((), dtype=torch.int, device=query.device) for _ in range(4)]
        scores = [torch.zeros((), device=query.device)] if arguments > len(indices) else []
        with _Reads([*scores, *indices]) as reads:
            function(*scores, *indices)
    return list(reads.captured.values())


class _Reads(TorchFunctionMode):
    """Collects the tensors that functions read, except given ones and those that the functions made."""

    def __init__(self, given: list[Tensor]) -> None:
        super().__init__()
        self.captured: dict[int, Tensor] = {}
        self._made = {id(each): each for each in given}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        self.captured.update({id(each): each for each in read if id(each) not in self._made})
        output = func(*args, **(kwargs or {}))
        self._made.update({id(each): each for each in tree_leaves(output) if isinstance(each, Tensor)})
        return output


def _only_simulated(*_: Any) -> Any:
    raise MembenchError("the compiled kernel of flex_attention is simulated, not run; use membench.predict")


_forward = torch.library.custom_op(
    "membench::flex_attention",
    _only_simulated,
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, Tensor[] trained, Tensor[] others, float share)"
    " -> (Tensor, Tensor, Tensor)",
)
_backward = torch.library.custom_op(
    "membench::flex_attention_backward",
    _only_simulated,
    mutates_args=(),
    schema="(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor output, Tensor sums, Tensor[] trained,"
    " Tensor[] others, float share) -> Tensor[]",
)


@_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return flex_attention_shapes(query, key, value)


@_backward.register_fake
def _(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    sums: Tensor,
    trained: list[Tensor],
    *_: Any,
) -> list[Tensor]:
    return [torch.empty_like(each) for each in (query, key, value, *trained)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    query, key, value, trained, others, ctx.share = inputs
    ctx.trained = len(trained)
    ctx.mark_non_differentiable(output[2])
    ctx.save_for_backward(query, key, value, *output[:2], *trained, *others)


def _gradients(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Any, ...]:
    query, key, value, output, sums, *rest = ctx.saved_tensors
    trained, others = rest[: ctx.trained], rest[ctx.trained :]
    given = (gradient, query, key, value, output, sums, trained, others, ctx.share)
    gradients = torch.ops.membench.flex_attention_backward(*given)
    return (*gradients[:3], gradients[3:], [None] * len(others), None)


_forward.register_autograd(_gradients, setup_context=_keep)


def _pairs(query: Tensor, key: Tensor, share: float) -> float:
    return share * query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]


def _operations(
    query: Tensor, key: Tensor, value: Tensor, trained: Any, others: Any, share: float, out_val: Any = None
) -> int:
    return int(2 * _pairs(query, key, share) * (query.shape[3] + value.shape[3]))


def _operations_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any, out_val: Any = None
) -> int:
    """Count five products: the scores again, and the gradients of probabilities, values, queries and keys."""
    share = rest[-1]
    return int(2 * _pairs(query, key, share) * (3 * query.shape[3] + 2 * value.shape[3]))


FORMULAS: dict[OpOverloadPacket, Callable[..., int]] = {
    torch.ops.membench.flex_attention: _operations,
    torch.ops.membench.flex_attention_backward: _operations_backward,
}
"""Of operations, as `flop_formulas`."""
