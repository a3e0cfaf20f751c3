"""Shapes of weights that bitsandbytes will quantize when their module moves to a device.

``Linear4bit`` and ``Linear8bitLt`` hold the weights with which they were made until then. Moved, they hold what its
`quantize_4bit` or `int8_vectorwise_quant` returns (``bitsandbytes/nn/modules.py`` 0.50: ``Params4bit._quantize``,
``Int8Params._quantize``).
"""

from typing import Any

import torch
from torch import Tensor

from membench.core.libraries.torch_internals import no_dispatch


def is_packed(weight: Tensor) -> bool:
    """Return whether a weight's elements hold several numbers, now or once moved, so that its dtype stays."""
    return _class_of(weight) == "Params4bit" or is_unquantized(weight)


def is_unquantized(weight: Tensor) -> bool:
    """Return whether a weight is quantized when it is moved."""
    match _class_of(weight):
        case "Params4bit":
            return not weight.bnb_quantized  # type: ignore[attr-defined]
        case "Int8Params":
            return weight.dtype is not torch.int8 and not weight.has_fp16_weights  # type: ignore[attr-defined]
        case _:
            return False


def held_bytes(weight: Tensor) -> int:
    """Return the bytes of a weight where the step runs: quantized, if it is quantized when it is moved."""
    memory = quantized(weight, None)[0] if is_unquantized(weight) else weight
    return memory.numel() * memory.itemsize


def quantized(weight: Tensor, dtype: torch.dtype | None) -> tuple[Tensor, dict[str, Any]]:
    """Return a weight's memory after it is quantized, on the meta device, and the attributes that it has then.

    Args:
        dtype: dtype of the weight before; None: its own.
    """
    from bitsandbytes import functional

    attributes = dict(vars(weight))
    with no_dispatch():
        with torch.device("cpu"):  # bitsandbytes keeps this table for all later quantizations
            functional.name2qmap.setdefault("dynamic", functional.create_dynamic_map())
        full = torch.empty(weight.shape, dtype=dtype or weight.dtype, device="meta")
        if _class_of(weight) == "Int8Params":
            memory, scales, _ = functional.int8_vectorwise_quant(full.to(torch.float16))
            return memory, {**attributes, "CB": memory, "SCB": scales}
        memory, state = functional.quantize_4bit(
            full,
            blocksize=attributes["blocksize"],
            compress_statistics=attributes["compress_statistics"],
            quant_type=attributes["quant_type"],
            quant_storage=attributes["quant_storage"],
        )
    return memory, {**attributes, "quant_state": state, "bnb_quantized": True}


def _class_of(weight: Tensor) -> str:
    kind = type(weight)
    return kind.__name__ if kind.__module__.startswith("bitsandbytes.") else ""
