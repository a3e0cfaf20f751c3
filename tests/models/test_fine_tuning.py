"""Fine-tuned networks as files of conf/model describe them."""

import sys
from typing import Any

import pytest
import torch
from torch import nn

from membench.core.errors import MembenchError
from membench.models.fine_tuning import checkpointed, quantized, with_adapters
from membench.sweep.cells.model import Model

HERE = __name__
LLAMA = {
    "_target_": "membench.models.hugging_face.network", "model_type": "llama", "vocab_size": 32, "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip


def model_of(**options: Any) -> Model:
    tokens = {"shape": [4], "below": 32}
    own = {"_target_": "membench.models.hugging_face.OwnLoss"}
    inputs = {"input_ids": tokens, "labels": tokens}
    return Model.from_configuration({"name": "tiny", "module": LLAMA, "loss": own, "inputs": inputs, **options})


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_file_describes_qlora(device: str) -> None:
    lora = {"r": 2, "target_modules": ["q_proj", "v_proj"]}
    module = model_of(quantization="bnb.nf4-dq", lora=lora).workload(2, seed=0, device=device).module
    trained = [name for name, weight in module.named_parameters() if weight.requires_grad]
    assert len(trained) == 2 * 2 * 2 and all("lora" in name for name in trained)
    kinds = [type(weight).__name__ for weight in module.parameters()]
    assert kinds.count("Params4bit") == 2 * 7
    assert type(module.get_submodule("base_model.model.lm_head")) is nn.Linear


def test_layers_that_stay_are_named() -> None:
    module = model_of(quantization="bnb.int8", unquantized=["down_proj"]).workload(1, seed=0, device="cpu").module
    kinds = {type(layer).__name__ for path, layer in module.named_modules() if path.endswith("down_proj")}
    assert kinds == {"Linear"}
    assert type(module.get_submodule("lm_head")).__name__ == "Linear8bitLt"


@pytest.mark.parametrize("quantization", ["bnb.nf4", "bnb.nf4-dq", "bnb.fp4"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_packed_weights_have_the_elements_that_fsdp_needs(device: str, quantization: str) -> None:
    for storage in ("uint8", "bfloat16", "float16", "float32"):
        model = model_of(quantization=quantization, bnb_4bit_quant_storage=storage)
        module = model.workload(1, seed=0, device=device).module
        packed: list[Any] = [each for each in module.parameters() if type(each).__name__ == "Params4bit"]
        dtype = getattr(torch, storage)
        assert {each.quant_storage for each in packed} == {dtype}
        if device == "cpu":
            assert {each.dtype for each in packed} == {dtype}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage is for quantized weights; give model.quant"),
        ({"quantization": "bnb.int8", "bnb_4bit_quant_storage": "bfloat16"}, "weights of 4 bits of bitsandbytes, but"),
        (
            {"quantization": "bnb.nf4", "bnb_4bit_quant_storage": "bf16"},
            "bnb_4bit_quant_storage .* are: uint8, bfloat16",
        ),
    ],
)
def test_a_storage_without_packed_weights_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(MembenchError, match=message):
        model_of(**options).workload(1, seed=0, device="meta")


def test_without_options_a_network_stays_as_it_is() -> None:
    assert {type(weight) for weight in model_of().workload(1, seed=0, device="cpu").module.parameters()} == {
        nn.Parameter
    }


def test_what_cannot_be_described_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = nn.Sequential(nn.Linear(64, 64))
    with pytest.raises(MembenchError, match=r"quantization 'nf4' is not known.* are: bnb.nf4, .*"):
        quantized(layers, "nf4")
    with pytest.raises(MembenchError, match="the Sequential has no linear layers to quantize; leave it out"):
        quantized(nn.Sequential(nn.ReLU()), "bnb.nf4")
    with pytest.raises(MembenchError, match=r"lora: .*rank.*give options of peft.LoraConfig"):
        with_adapters(layers, {"rank": 8})
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MembenchError, match=r"needs peft: pip install 'membench\[tuning\]'"):
        with_adapters(layers, {"r": 8})


def test_a_frozen_layer_of_torchao_multiplies_by_its_weight() -> None:
    torch.manual_seed(0)
    full = nn.Linear(128, 256)
    module = quantized(nn.Sequential(full), "torchao.nf4")
    inputs = torch.randn(3, 128)
    weight: Any = module[0].weight
    expected = nn.functional.linear(inputs, weight.get_original_weight(), full.bias)
    torch.testing.assert_close(module(inputs), expected)


def test_a_file_switches_checkpointing_on() -> None:
    lora = {"r": 2, "target_modules": ["q_proj"]}
    for options in ({}, {"lora": lora}):
        module = model_of(checkpointing=True, **options).workload(1, seed=0, device="meta").module
        layers = [layer for layer in module.modules() if getattr(layer, "gradient_checkpointing", False)]
        assert len(layers) >= 2
    with pytest.raises(MembenchError, match="a Sequential has neither gradient_checkpointing_enable"):
        checkpointed(nn.Sequential(nn.Linear(2, 2)))
