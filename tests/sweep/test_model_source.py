"""Models that have no file: composed by Hydra from the name of a library's network or of the user's own class."""

from typing import Any

import pytest
from hydra import compose

from membench.cli.command_line import HYDRA_ERRORS
from membench.core.configuration import read
from membench.core.errors import MembenchError
from membench.sweep.composition import hydra_composition, resolved

FINE_TUNING = {
    "quantization": None, "unquantized": None, "bnb_4bit_quant_storage": None, "lora": {}, "checkpointing": False,
}  # fmt: skip


def model_of(*words: str) -> dict[str, Any]:
    with hydra_composition():
        return resolved(compose("config", list(words)))["model"]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("hf/gpt2-medium", "gpt2_medium"),
        ("hf/meta-llama/Llama-2-7b-hf", "llama_7b"),
        ("hf/google-t5/t5-small", "t5_small"),
    ],
)
def test_a_published_name_is_its_file(name: str, file: str) -> None:
    assert model_of(f"model={name}") == {**read("model", file), **FINE_TUNING}


def test_a_type_of_transformers_has_its_default_sizes() -> None:
    assert model_of("model=hf/gpt2", "model.sequence_length=512") == {
        "name": "gpt2",
        "module": {"_target_": "membench.models.hugging_face.network", "model_type": "gpt2"},
        "loss": {"_target_": "membench.models.hugging_face.OwnLoss"},
        "sequence_length": 512,
        "vocabulary": 50257,
        "inputs": {
            "input_ids": {"shape": ["sequence_length"], "below": "vocabulary"},
            "labels": {"shape": ["sequence_length"], "below": "vocabulary"},
        },
        "batch_size": 8,
        **FINE_TUNING,
    }
    images = model_of("model=hf/vit")
    assert images["inputs"]["pixel_values"] == {"shape": [3, "image_size", "image_size"]}


def test_weights_may_be_quantized_and_adapters_added() -> None:
    words = ["model=hf/llama-2-7b-hf", "model.quantization=bnb.nf4", "model.lora.r=8"]
    model = model_of(*words, "model.lora.target_modules=[q_proj,v_proj]")
    assert model["quantization"] == "bnb.nf4"
    assert model["lora"] == {"r": 8, "target_modules": ["q_proj", "v_proj"]}


def test_a_network_of_timm_has_the_images_and_classes_of_its_weights() -> None:
    model = model_of("model=timm/vit_small_patch16_384.augreg_in21k_ft_in1k", "model.module.drop_rate=0.1")
    assert (model["input_shape"], model["classes"]) == ([3, 384, 384], 1000)
    assert model["module"]["drop_rate"] == 0.1


def test_own_models_take_any_option_of_theirs_and_no_other() -> None:
    words = ["model=own/mypackage.nets.MyNet", "model.module.width=64", "model.loss._target_=mypackage.loss"]
    model = model_of(*words, "model.inputs.ids.shape=[12]", "model.targets={label:{shape:[],below:3}}")
    assert model["name"] == "MyNet"
    assert model["module"] == {"_target_": "mypackage.nets.MyNet", "width": 64}
    assert model["inputs"] == {"ids": {"shape": [12]}}
    assert model["targets"] == {"label": {"shape": [], "below": 3}}
    with pytest.raises(HYDRA_ERRORS):
        model_of(*words, "model.clases=10")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm/vit_smal_patch16_224", "has no network 'vit_smal_patch16_224'; did you mean 'vit_small_patch16_224'"),
        ("timm/local-dir:x", "has no network 'local-dir:x'"),
        ("hf/gpt3", "neither a model type of transformers .* published networks gpt2-medium, .* did you mean"),
    ],
)
def test_an_unknown_network_is_refused_with_what_there_is(name: str, message: str) -> None:
    with pytest.raises(MembenchError, match=message):
        model_of(f"model={name}")
