"""Inference as it is served: the inputs of steps that fill a cache of keys and values, and read it."""

import re
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

import membench
from membench.core.errors import MembenchError
from membench.models.serving import served_inputs

TINY = {
    "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 50, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
FAMILIES = ("llama", "mistral", "gpt2")
MORE = ("gemma2", "qwen3", "phi", "gpt_neox")


def tiny(family: str) -> nn.Module:
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 32, "vocab_size": 50} if family == "gpt2" else TINY
    with torch.device("meta"):
        module: nn.Module = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes))
    return module.eval()


@pytest.mark.parametrize("family", [*FAMILIES, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in MORE)])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_networks_decode_with_either_cache_and_without_values(family: str, kind: str) -> None:
    module, ids = tiny(family), torch.empty(3, 9, dtype=torch.int64, device="meta")
    sizes = {}
    for phase in ("prefill", "decode"):
        inputs = served_inputs(module, ids, phase, cache=kind)
        prediction = membench.predict(module, None, (inputs, ()), device="a100_80gb", precision="bf16")
        sizes[phase] = prediction.cache_bytes
        assert prediction.batch_size == 3 and prediction.step_time_s > 0
    heads = getattr(module.config, "num_key_value_heads", None) or 4
    least_bytes = 2 * 2 * 3 * heads * 9 * 8 * 2  # keys and values, layers, sequences, heads, tokens, width, bytes
    assert sizes["prefill"] == sizes["decode"] >= least_bytes


def test_the_last_token_is_new_and_the_cache_holds_the_earlier_ones() -> None:
    ids = torch.empty(2, 7, dtype=torch.int64, device="meta")
    inputs: dict[str, Any] = served_inputs(tiny("llama"), ids)
    assert inputs["input_ids"].shape == (2, 1)
    assert inputs["past_key_values"].get_seq_length() == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"module": nn.Linear(1, 1)}, "kept by a causal language model of transformers"),
        ({"phase": "decoding"}, "phase 'decoding' is not known"),
        ({"cache": "paged"}, "cache 'paged' is not known"),
        ({"input_ids": torch.zeros(2, 1)}, "two tokens or more, not (2, 1)"),
    ],
)
def test_wrong_arguments_are_refused(change: dict[str, Any], message: str) -> None:
    ids = torch.empty(2, 7, dtype=torch.int64, device="meta")
    given = {"module": tiny("llama"), "input_ids": ids, "phase": "decode", **change}
    with pytest.raises(MembenchError, match=re.escape(message)):
        served_inputs(**given)
