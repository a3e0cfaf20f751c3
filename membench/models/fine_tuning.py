"""Networks as they are fine-tuned: linear layers with quantized weights, adapters of peft on them, checkpointing."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from membench.core.checks import choice
from membench.core.errors import MembenchError

UNQUANTIZED = ("lm_head",)
"""Layers that transformers leaves in full precision: the output's, whose weight may be the embedding's too."""


def quantized(
    module: nn.Module, quantization: str, unquantized: Sequence[str] = UNQUANTIZED, storage: str | None = None
) -> nn.Module:
    """Return a module whose linear layers have quantized weights, without gradients.

    On the meta device, layers of bitsandbytes hold full weights until they are moved to a device; a prediction for a
    GPU takes them as they are then.

    Args:
        quantization: the library, and its format: ``"bnb.nf4"``, ``"bnb.fp4"``, with ``-dq`` for double quantization of
            the statistics, ``"bnb.int8"`` or ``"torchao.nf4"``.
        unquantized: last names of layers that stay as they are.
        storage: dtype of the elements in which bitsandbytes packs weights of 4 bits (``bnb_4bit_quant_storage`` of
            transformers): ``"uint8"`` (None), ``"bfloat16"``, ``"float16"`` or ``"float32"``. FSDP1 needs that of the
            other weights.

    Raises:
        MembenchError: there is no such quantization or storage, or it has none of its own; its library is not
            installed, or the module has no linear layers to quantize.
    """
    make = _LAYERS[choice(_LAYERS, "quantization", quantization)]
    if storage is not None:
        make = _stored_as(storage, quantization, make)
    found = [
        (parent, name, layer)
        for parent in module.modules()
        for name, layer in parent.named_children()
        if type(layer) is nn.Linear and name not in unquantized
    ]
    if not found:
        raise MembenchError(
            f"quantization={quantization}: the {type(module).__name__} has no linear layers to quantize; leave it out"
        )
    for parent, name, layer in found:
        setattr(parent, name, make(layer).train(layer.training))
    device = found[0][2].weight.device
    return module if device.type == "meta" else module.to(device)


def in_float8(module: nn.Module) -> nn.Module:
    """Return a module whose linear layers multiply in float8, each factor scaled by its largest element, in training.

    Raises:
        MembenchError: torchao is not installed.
    """
    converted: nn.Module = _imported("torchao.float8").convert_to_float8_training(module)
    return converted


def with_adapters(module: nn.Module, options: Mapping[str, Any]) -> nn.Module:
    """Return a module with low-rank adapters (Hu et al. 2021) of peft, which alone are trained.

    Args:
        options: options of ``peft.LoraConfig``: ``r``, ``target_modules``, ``lora_dropout``, ``use_dora`` ...

    Raises:
        MembenchError: peft is not installed, or does not take an option.
    """
    peft = _imported("peft")
    try:
        config = peft.LoraConfig(**options)
    except TypeError as error:
        raise MembenchError(f"lora: {error}; give options of peft.LoraConfig, such as r and target_modules") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by names that it renames
        made: nn.Module = peft.get_peft_model(module, config)
    return made


def checkpointed(module: nn.Module) -> nn.Module:
    """Return a module after it has switched on its own checkpointing: one of transformers, of peft, or of timm.

    Raises:
        MembenchError: the module has no switch, or adapters need one that its library lacks.
    """
    switched: Any = module
    if hasattr(module, "gradient_checkpointing_enable"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # transformers renames it
            switched.gradient_checkpointing_enable()
        if hasattr(module, "peft_config"):
            switched.enable_input_require_grads()
        return module
    if hasattr(module, "set_grad_checkpointing"):
        switched.set_grad_checkpointing()
        return module
    raise MembenchError(
        f"checkpointing=true: a {type(module).__name__} has neither gradient_checkpointing_enable() nor "
        "set_grad_checkpointing(); call torch.utils.checkpoint in the module itself"
    )


class FrozenNF4Linear(nn.Linear):
    """A linear layer whose weight torchao stores in NF4 and makes again for each product, as in torchtune's QLoRA.

    Args:
        layer: with the weight; on the meta device too.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        self.weight = nn.Parameter(_nf4().to_nf4(layer.weight.detach()), requires_grad=False)
        if layer.bias is not None:
            self.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the product of inputs (..., in) and the weight (out, in), with the bias added."""
        output: Tensor = _nf4().linear_nf4(inputs, self.weight)
        return output if self.bias is None else output + self.bias


def _stored_as(storage: str, quantization: str, make: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Return what makes a layer whose packed weights have elements of a dtype.

    Raises:
        MembenchError: there is no such storage, or the quantization has none.
    """
    if not quantization.startswith(_OF_4_BITS):
        raise MembenchError(
            f"bnb_4bit_quant_storage={storage} is for weights of 4 bits of bitsandbytes, but "
            f"quantization={quantization}; leave it out, or choose bnb.nf4"
        )
    dtype = getattr(torch, choice(_STORAGES, "bnb_4bit_quant_storage", storage))
    return partial(make, storage=dtype)


_OF_4_BITS = ("bnb.nf4", "bnb.fp4")
_STORAGES = ("uint8", "bfloat16", "float16", "float32")


def _of_4_bits(quant_type: str, *, nested: bool) -> Callable[..., nn.Module]:
    def make(layer: nn.Linear, storage: torch.dtype = torch.uint8) -> nn.Module:
        library = _imported("bitsandbytes")
        with torch.device("meta"):
            made: nn.Module = library.nn.Linear4bit(
                layer.in_features,
                layer.out_features,
                layer.bias is not None,
                compress_statistics=nested,
                quant_type=quant_type,
                quant_storage=storage,
            )
        weight = library.nn.Params4bit(
            layer.weight.detach(),
            requires_grad=False,
            compress_statistics=nested,
            quant_type=quant_type,
            quant_storage=storage,
            module=made,
        )
        return _with_weights(made, weight, layer.bias)

    return make


def _of_8_bits(layer: nn.Linear) -> nn.Module:
    library = _imported("bitsandbytes")
    with torch.device("meta"):
        made: nn.Module = library.nn.Linear8bitLt(
            layer.in_features, layer.out_features, layer.bias is not None, has_fp16_weights=False, threshold=_THRESHOLD
        )
    weight = library.nn.Int8Params(layer.weight.detach(), requires_grad=False, has_fp16_weights=False)
    return _with_weights(made, weight, layer.bias)


_THRESHOLD = 6.0
"""Of LLM.int8's outliers (Dettmers et al. 2022, Section 3.2; transformers' default)."""


def _with_weights(layer: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    layer.weight = weight
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return layer


_LAYERS: dict[str, Callable[..., nn.Module]] = {
    "bnb.nf4": _of_4_bits("nf4", nested=False),
    "bnb.nf4-dq": _of_4_bits("nf4", nested=True),
    "bnb.fp4": _of_4_bits("fp4", nested=False),
    "bnb.fp4-dq": _of_4_bits("fp4", nested=True),
    "bnb.int8": _of_8_bits,
    "torchao.nf4": FrozenNF4Linear,
}


def _nf4() -> Any:
    """Return the module of torchao with its NF4, whose place differs between versions."""
    for name in ("quantization.quantize_.workflows.nf4.nf4_tensor", "dtypes.nf4tensor"):
        try:
            return import_module(f"torchao.{name}")
        except ImportError:
            continue
    return _imported("torchao.dtypes")


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MembenchError(f"this network needs {name.partition('.')[0]}: pip install 'membench[tuning]'") from error
