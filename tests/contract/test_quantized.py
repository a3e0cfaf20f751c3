"""Networks with quantized weights and with adapters: a step gives the bits of PyTorch, at its predicted peak."""

from collections.abc import Callable
from typing import Any

import peft
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, IntxWeightOnlyConfig, quantize_

import membench
from membench.core.step.stored import stored_weights
from membench.core.step.workload import Workload
from membench.models.fine_tuning import quantized, with_adapters
from membench.models.hugging_face import network
from membench.steps.plan import plan
from membench.strategies.base import strategies
from tests.helpers.networks.contract import COST, as_run
from tests.helpers.steps.checks import check_results_and_peak

CLASSES = 3


def between_trained(*, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    frozen = nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64, bias=False)
    for layer in frozen:
        layer.requires_grad_(False)
    return nn.Sequential(nn.Linear(16, 64), *frozen, nn.Dropout(0.2), nn.Linear(64, CLASSES)).to(dtype)


def of_bitsandbytes(quantization: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    module = between_trained(dtype=dtype)
    return quantized(module, quantization, unquantized=("0", "5"))


def of_torchao(config: Any, dtype: torch.dtype = torch.float32) -> nn.Module:
    module = between_trained(dtype=dtype)
    config.set_inductor_config = False  # which other tests would find changed
    quantize_(module, config, lambda layer, name: isinstance(layer, nn.Linear) and name in ("1", "3"))
    return module


def in_float8(recipe: str) -> nn.Module:
    module = between_trained(dtype=torch.bfloat16).requires_grad_(True)
    config = Float8LinearConfig.from_recipe_name(recipe)
    return convert_to_float8_training(module, config=config, module_filter_fn=lambda _, name: name in ("1", "3"))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "bnb.nf4": lambda: of_bitsandbytes("bnb.nf4"),
    "bnb.nf4, bf16": lambda: of_bitsandbytes("bnb.nf4", torch.bfloat16),
    "bnb.nf4-dq": lambda: of_bitsandbytes("bnb.nf4-dq"),
    "bnb.fp4": lambda: of_bitsandbytes("bnb.fp4"),
    "bnb.fp4-dq, bf16": lambda: of_bitsandbytes("bnb.fp4-dq", torch.bfloat16),
    "bnb.int8": lambda: of_bitsandbytes("bnb.int8"),
    "bnb.int8, bf16": lambda: of_bitsandbytes("bnb.int8", torch.bfloat16),
    "torchao.nf4, bf16": lambda: of_bitsandbytes("torchao.nf4", torch.bfloat16),
    "torchao's int8": lambda: of_torchao(Int8WeightOnlyConfig()),
    "torchao's int4": lambda: of_torchao(IntxWeightOnlyConfig(torch.int4)),
    "torchao's float8": lambda: of_torchao(Float8WeightOnlyConfig(), torch.bfloat16),
    "trained in float8, tensorwise": lambda: in_float8("tensorwise"),
    "trained in float8, rowwise": lambda: in_float8("rowwise"),
}


def workload_of(module: nn.Module) -> Workload:
    dtype = next(module.parameters()).dtype
    inputs, targets = torch.randn(16, 16, dtype=dtype), torch.randint(CLASSES, (16,))
    return Workload("quantized", module, functional.cross_entropy, (inputs,), (targets,))


def check_exact(work: Workload) -> None:
    case = as_run(work)
    for strategy in ("pytorch", "joint"):
        check_results_and_peak(case, plan(case.captured.graph, strategies()[strategy](), COST, None))


@pytest.mark.parametrize("name", MODULES)
def test_a_step_on_quantized_weights_is_exact(name: str) -> None:
    check_exact(workload_of(MODULES[name]()))


LORA: dict[str, Any] = {"r": 4, "target_modules": ["q_proj", "v_proj"]}
IA3 = {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]}
ADAPTED: dict[str, tuple[str | None, Callable[[], Any]]] = {
    "lora": (None, lambda: peft.LoraConfig(**LORA, lora_dropout=0.1)),
    "dora": (None, lambda: peft.LoraConfig(**LORA, use_dora=True)),
    "ia3": (None, lambda: peft.IA3Config(**IA3)),
    "prompt": (None, lambda: peft.PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")),
    "adapters of prompts": (
        None,
        lambda: peft.AdaptionPromptConfig(adapter_len=4, adapter_layers=1, task_type="CAUSAL_LM"),
    ),
    "lora on nf4": ("bnb.nf4", lambda: peft.LoraConfig(**LORA, lora_dropout=0.1)),
    "dora on nf4": ("bnb.nf4-dq", lambda: peft.LoraConfig(**LORA, use_dora=True)),
    "ia3 on nf4": ("bnb.nf4", lambda: peft.IA3Config(**IA3)),
    "lora on int8": ("bnb.int8", lambda: peft.LoraConfig(**LORA)),
}


def next_token(output: Any, tokens: Tensor) -> Tensor:
    return functional.cross_entropy(output.logits[:, -tokens.shape[1] :].flatten(0, 1), tokens.flatten())


@pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing:FutureWarning"
)  # peft asks transformers by its old name
@pytest.mark.parametrize("name", ADAPTED)
def test_a_step_that_trains_adapters_is_exact(name: str) -> None:
    torch.manual_seed(0)
    quantization, adapters = ADAPTED[name]
    module = network(
        "llama", vocab_size=32, hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2
    )
    if quantization is not None:
        module = quantized(module, quantization)
        setattr(module, f"is_loaded_in_{'8' if '8' in quantization else '4'}bit", True)
    tokens = torch.randint(32, (2, 9))
    adapted = peft.get_peft_model(module, adapters())
    check_exact(Workload("adapted", adapted, next_token, (tokens,), (tokens,)))


def test_adapters_by_options_are_those_of_peft() -> None:
    torch.manual_seed(0)
    module = with_adapters(between_trained(), {"r": 2, "target_modules": ["1", "3"]})
    assert [name for name, weight in module.named_parameters() if weight.requires_grad] == [
        f"base_model.model.{layer}.lora_{part}.default.weight" for layer in "13" for part in "AB"
    ]
    check_exact(workload_of(module))


@pytest.mark.parametrize("quantization", ["bnb.nf4", "torchao.nf4"])
def test_an_optimizer_by_name_leaves_quantized_weights_alone(quantization: str) -> None:
    module = of_bitsandbytes(quantization)
    work = workload_of(module)
    before = {name: weight.clone() for name, weight in stored_weights(module).items()}
    step = membench.compile(module, work.loss, (work.inputs, work.targets), optimizer="adamw")
    step(work.inputs, work.targets)
    changed = {name for name, weight in stored_weights(module).items() if not torch.equal(weight, before[name])}
    assert changed == {"0.weight", "0.bias", "5.weight", "5.bias"}
