"""Words that people have for what membench has a name for: torch's, Lightning's, transformers'.

Names are read in any case, and with any separators, as in ``AdamW``, ``ResNet-50`` and ``RTX 4090``.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

PRECISIONS: Mapping[str, str] = {
    # torch's dtypes
    "float32": "fp32",
    "float": "fp32",
    "single": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    # Lightning's
    "32": "fp32",
    "32-true": "fp32",
    "bf16-true": "bf16",
    "16-true": "fp16",
    "bf16-mixed": "amp_bf16",
    "16": "amp_fp16",
    "16-mixed": "amp_fp16",
    # Keras', by which users of transformers and accelerate also name what their bf16=True and fp16=True are
    "mixed_bfloat16": "amp_bf16",
    "mixed_bf16": "amp_bf16",
    "mixed_float16": "amp_fp16",
    "mixed_fp16": "amp_fp16",
}
"""Other names of a step's precision, in small letters; ``bf16`` and ``fp16`` are the whole step's, as for torch."""

_OPTIMIZERS: Mapping[str, str] = {
    # transformers.training_args.OptimizerNames
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "adamw_bnb_8bit": "adamw8bit",
    "adamw_8bit": "adamw8bit",
    "paged_adamw_32bit": "paged_adamw",
    "paged_adamw_8bit": "paged_adamw8bit",
    "lion_32bit": "lion",
    "adamw_torch_8bit": "torchao_adamw8bit",
    "adamw_torch_4bit": "torchao_adamw4bit",
}
_OPTIONS: Mapping[str, Mapping[str, Any]] = {"adamw_torch_fused": {"fused": True}}


def precision_named(word: object) -> object:
    """Return the name of a precision that torch, Lightning or Keras call so; any other word as it is."""
    text = str(word).lower().removeprefix("torch.")
    return PRECISIONS.get(text, text if isinstance(word, str) else word)


def name_in(group: str, word: str, known: Iterable[str]) -> str:
    """Return the name of a file of a group that a word means, or the word as it is.

    Args:
        known: names of the group.
    """
    names = list(known)
    if not isinstance(word, str) or word in names:  # a program may pass anything
        return word
    if group == "optimizer":
        word = _OPTIMIZERS.get(word.lower(), word.rpartition(".")[2])
    alike = [name for name in names if _letters(name) == _letters(word)]
    return alike[0] if len(alike) == 1 else word


def options_in(group: str, word: str) -> Mapping[str, Any]:
    """Return the options that a word of a group implies, as ``adamw_torch_fused`` implies a fused update."""
    return _OPTIONS.get(str(word).lower(), {}) if group == "optimizer" else {}


def _letters(word: str) -> str:
    return re.sub(r"[^a-z0-9/]", "", word.lower())
