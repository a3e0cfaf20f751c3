"""Inference as it is served: prompts that fill a cache of keys and values, and steps of one token that read it.

A step of either phase is an ordinary one of inference: the cache is among its inputs, its outputs, or both.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, final

import torch
from torch import Tensor, nn

from membench.core.checks import choice
from membench.core.errors import MembenchError
from membench.core.step.opened import opened
from membench.core.step.workload import Workload


class Phase(StrEnum):
    """The two kinds of steps in which tokens are generated."""

    PREFILL = "prefill"
    DECODE = "decode"


class CacheKind(StrEnum):
    """How a cache takes new keys and values.

    A dynamic one (transformers' `DynamicCache`) makes a longer tensor for each layer and frees the shorter one; a
    static one (`StaticCache`) has tensors of a fixed length, and is written in place.
    """

    DYNAMIC = "dynamic"
    STATIC = "static"


def served_inputs(
    module: nn.Module, input_ids: Tensor, phase: str = "decode", *, cache: str = "dynamic"
) -> dict[str, Any]:
    """Return the inputs of a step in which a network of transformers serves sequences, as its ``generate`` passes them.

    Args:
        module: a causal language model, on any device, ``meta`` included; it runs once on all but the last token to
            decode.
        input_ids: (sequences, tokens).
        phase: ``"prefill"``: all tokens are the prompts. ``"decode"``: the last token of each sequence is the new one,
            and the cache holds the earlier ones.
        cache: ``"dynamic"``, or ``"static"`` of that many tokens.

    Raises:
        MembenchError: an argument is none of these, there are too few tokens, or the module keeps no such cache.
    """
    if not hasattr(module, "generate") or not hasattr(module, "config"):
        raise MembenchError(
            f"keys and values are kept by a causal language model of transformers, such as model=hf/llama-2-7b-hf; "
            f"this is a "
            f"{type(module).__name__}"
        )
    if input_ids.dim() != 2 or input_ids.shape[1] < 2:
        raise MembenchError(
            f"sequences to serve are (sequences, tokens) with two tokens or more, not {tuple(input_ids.shape)}"
        )
    kept = _empty_cache(module, choice(CacheKind, "cache", cache), input_ids.shape[1])
    if choice(Phase, "phase", phase) is Phase.PREFILL:
        of_last = {"logits_to_keep": 1} if "logits_to_keep" in _parameters(module) else {}
        return {"input_ids": input_ids, "past_key_values": kept, "use_cache": True, **of_last}
    with torch.no_grad(), torch.device(input_ids.device):
        output = module(input_ids=input_ids[:, :-1], past_key_values=kept, use_cache=True)
    filled = getattr(output, "past_key_values", None)
    if filled is None:
        raise MembenchError(f"{type(module).__name__} returns no past_key_values, so its decoding cannot be predicted")
    return {"input_ids": input_ids[:, -1:].contiguous(), "past_key_values": filled, "use_cache": True}


def _empty_cache(module: nn.Module, kind: CacheKind, tokens: int) -> Any:
    from transformers import DynamicCache, StaticCache  # the module is one of transformers

    if kind is CacheKind.DYNAMIC:
        return DynamicCache(config=module.config)
    return StaticCache(config=module.config, max_cache_len=tokens)


def _parameters(module: nn.Module) -> Mapping[str, Any]:
    return inspect.signature(module.forward).parameters


@final
@dataclass(frozen=True)
class Serving:
    """How a configured network serves; see `served_inputs`."""

    phase: str
    cache: str = "dynamic"

    def __post_init__(self) -> None:
        choice(Phase, "serving.phase", self.phase)
        choice(CacheKind, "serving.cache", self.cache)

    def workload(self, workload: Workload) -> Workload:
        """Return the step that serves the sequences of an example batch.

        Raises:
            MembenchError: see `served_inputs`; or the batch has no token ids.
        """
        inputs = workload.inputs
        if not isinstance(inputs, dict) or not isinstance(inputs.get("input_ids"), Tensor):
            raise MembenchError(
                f"serving: {workload.name} has no input_ids; choose a language model such as model=hf/llama-2-7b-hf"
            )
        module, input_ids = workload.module.eval(), inputs["input_ids"]
        name = f"{workload.name}, {self.phase} at {input_ids.shape[1]:,} tokens, {self.cache} cache"
        given = opened(served_inputs(module, input_ids, self.phase, cache=self.cache))
        return replace(workload, name=name, module=module, loss=None, inputs=given, targets=())

    def tokens(self, sequences: int, length: int) -> int:
        """Return the tokens that a step processes: of all prompts, or one of each sequence."""
        return sequences * (length if self.phase == Phase.PREFILL else 1)
