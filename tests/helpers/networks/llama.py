"""Small Llamas: membench's own, and the configuration of transformers'."""

from typing import TYPE_CHECKING, Any

from membench.models.llama import Llama

if TYPE_CHECKING:
    from transformers import LlamaConfig


def small_llama(**sizes: Any) -> Llama:
    """Return a Llama of two layers; it takes 64 tokens of a vocabulary of 64."""
    small = {"layers": 2, "width": 64, "heads": 4, "groups": 4, "inner": 64, "vocabulary": 64, "length": 64}
    return Llama(**{**small, **sizes})


def small_llama_config(**options: Any) -> "LlamaConfig":
    """Return the configuration of a Llama of one layer, width 64 and a vocabulary of 64."""
    from transformers import LlamaConfig  # which takes seconds

    small = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaConfig(**{**small, **heads, "use_cache": False, **options})
