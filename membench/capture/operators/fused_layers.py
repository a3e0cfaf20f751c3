"""torch's fused attention and encoder layers, which run in evaluation without gradients, as their parts.

The parts are those of torch's ``aten/src/ATen/native/transformers``: ``attention.cpp``
(`native_multi_head_attention_cpu`) and ``transformer.cpp`` (`transformer_encoder_layer_forward`). A step gives the same
bits as the fused operators, and can free, copy or compute again what they hold inside.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from membench.core.libraries.one_thread import in_this_thread
from membench.core.libraries.torch_contexts import autocast, autocast_dtype, without_torch_function_modes
from membench.core.libraries.torch_internals import (
    FUSED_ATTENTION,
    FUSED_ENCODER_LAYER,
    TorchDispatchMode,
    masked_softmax,
    softmax_into,
    split_heads,
    torch_function_modes,
)

_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


@contextmanager
def fused_layers_in_parts(module: nn.Module) -> Iterator[None]:
    """Let layers on the CPU choose their fused operators as in plain PyTorch, and run those in parts.

    They choose them where no function mode is active, such as a trace's, and where they have no hooks.
    """
    layers = {id(each) for each in module.modules() if isinstance(each, _FUSED)}
    if not layers or torch_function_modes() > 1:  # with modes of the user plain PyTorch does not fuse either
        yield
        return
    with ExitStack() as entered:
        inside: list[ExitStack] = []

        @in_this_thread
        def enter(layer: nn.Module, args: Any) -> None:
            if id(layer) in layers:
                inside.append(entered.enter_context(ExitStack()))
                if not layer.training and all(each.device.type == "cpu" for each in layer.parameters()):
                    inside[-1].enter_context(without_torch_function_modes())
                    inside[-1].enter_context(_InParts(autocast_dtype("cpu")))

        @in_this_thread
        def leave(layer: nn.Module, args: Any, output: Any) -> None:
            if id(layer) in layers:
                inside.pop().close()

        with register_module_forward_pre_hook(enter), register_module_forward_hook(leave):
            yield


class _InParts(TorchDispatchMode):
    """Run fused operators in parts.

    Args:
        dtype: what autocast casts to on the CPU, None outside of it. It casts what an encoder layer calls; attention's
            arguments are cast when its operator arrives here.
    """

    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace != "aten":
            return func(*args, **kwargs)
        with self:
            if func is FUSED_ATTENTION:
                return _Attention(*args, **kwargs).run()
            if func is FUSED_ENCODER_LAYER:
                with nullcontext() if self._dtype is None else autocast("cpu", self._dtype):
                    return _EncoderLayer(*args, **kwargs).run()
            output = func.decompose(*args, **kwargs)  # torch has not taken apart what parts call
        return func(*args, **kwargs) if output is NotImplemented else output


class _Attention(NamedTuple):
    """The fused operator's arguments.

    Attributes:
        query, key, value: (samples, positions, channels), one tensor or, made of one by autocast, three.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    embed_dim: int
    num_head: int
    qkv_weight: Tensor
    qkv_bias: Tensor
    proj_weight: Tensor
    proj_bias: Tensor
    mask: Tensor | None = None
    need_weights: bool = True
    average_attn_weights: bool = True
    mask_type: int | None = None

    def run(self) -> tuple[Tensor, Tensor | None]:
        """Return the output, and the weights of attention: (samples, positions, positions), or those of each head."""
        samples, positions, _ = self.query.shape
        queries, keys, values = self._heads()
        weights = queries.bmm(keys.transpose(2, 1)).view(samples, self.num_head, positions, positions)
        if self.mask is None:
            softmax_into(weights, 3, False, out=weights)
        else:
            weights = masked_softmax(weights, self.mask.to(torch.bool), 3, self.mask_type)
        torch.bmm(weights.view(samples * self.num_head, positions, positions), values, out=queries)
        del keys, values
        if not self.need_weights:
            del weights
        by_position = queries.view(samples, self.num_head, positions, -1).permute(0, 2, 1, 3)
        output = nn.functional.linear(
            by_position.contiguous().view(samples * positions, -1), self.proj_weight, self.proj_bias
        ).view(samples, positions, -1)
        if not self.need_weights:
            return output, None
        if self.average_attn_weights:
            weights = weights.sum(1)
            weights /= self.num_head
        return output, weights

    def _heads(self) -> list[Tensor]:
        """Return queries, keys and values, (samples x heads, positions, channels of a head)."""
        samples, positions, _ = self.query.shape
        if self.query is self.key is self.value:
            projected = self.query.matmul(self.qkv_weight.t())
        else:
            three = self.query, self.key, self.value
            pairs = zip(three, self.qkv_weight.split(self.embed_dim), strict=True)
            projected = torch.cat([each.matmul(weight.t()) for each, weight in pairs], 2)
        heads = split_heads(projected, self.qkv_bias, self.num_head)
        return [each.view(samples * self.num_head, positions, -1) for each in heads]


class _EncoderLayer(NamedTuple):
    """The fused operator's arguments; `src` is (samples, positions, channels)."""

    src: Tensor
    embed_dim: int
    num_heads: int
    qkv_weight: Tensor
    qkv_bias: Tensor
    proj_weight: Tensor
    proj_bias: Tensor
    use_gelu: bool
    norm_first: bool
    eps: float
    norm_weight_1: Tensor
    norm_bias_1: Tensor
    norm_weight_2: Tensor
    norm_bias_2: Tensor
    ffn_weight_1: Tensor
    ffn_bias_1: Tensor
    ffn_weight_2: Tensor
    ffn_bias_2: Tensor
    mask: Tensor | None = None
    mask_type: int | None = None

    def run(self) -> Tensor:
        """Return the output, of the shape of `src`."""
        first, second = (self.norm_weight_1, self.norm_bias_1), (self.norm_weight_2, self.norm_bias_2)
        if self.norm_first:
            values = self._attention(self._norm(self.src, *first)).add_(self.src)
            return self._feed_forward(self._norm(values, *second)).add_(values)
        values = self._norm(self._attention(self.src).add_(self.src), *first)
        return self._norm(self._feed_forward(values).add_(values), *second)

    def _norm(self, values: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.native_layer_norm(values, [self.embed_dim], weight, bias, self.eps)[0]

    def _attention(self, values: Tensor) -> Tensor:
        weights = self.qkv_weight, self.qkv_bias, self.proj_weight, self.proj_bias
        sizes, mask = (self.embed_dim, self.num_heads), (self.mask, False, True, self.mask_type)
        output: Tensor = FUSED_ATTENTION(values, values, values, *sizes, *weights, *mask)[0]
        return output

    def _feed_forward(self, values: Tensor) -> Tensor:
        hidden = torch.addmm(self.ffn_bias_1, values.view(-1, values.shape[2]), self.ffn_weight_1.t())
        (torch.ops.aten.gelu_ if self.use_gelu else torch.relu_)(hidden)
        return torch.addmm(self.ffn_bias_2, hidden, self.ffn_weight_2.t()).view(*values.shape[:2], -1)
