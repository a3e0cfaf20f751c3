"""An unchanged step is not taken for another one, by what it reads of Python or by another recording."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import membench
from membench.conformance.networks import NETWORKS, workload_of
from membench.steps.real.compiled_step import CompiledStep
from tests.helpers.devices import DEVICE

pytestmark = pytest.mark.slow

ALIKE = {
    "alexnet", "googlenet", "mnasnet", "mobilenet_v3", "regnet", "resnet50", "resnext50", "squeezenet", "vgg11_bn",
}  # fmt: skip
"""Made of the layers of others."""
TOKENS = torch.randint(100, (2, 8))


def _transformer(kind: str, **sizes: int) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(vocab_size=100, **sizes)
    model: nn.Module = transformers.AutoModel.from_config(config)
    return model


TRANSFORMERS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": lambda: _transformer("GPT2", n_layer=2, n_head=2, n_embd=16, n_positions=16),
    "bert": lambda: _transformer(
        "Bert", hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    ),
    "llama": lambda: _transformer(
        "Llama", hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    ),
    "qwen3": lambda: _transformer(
        "Qwen3",
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=32,
    ),
}


def check(step: Any, inputs: Any, targets: Any = ()) -> None:
    assert isinstance(step, CompiledStep)
    for _ in range(2):
        step(inputs, targets)
    assert step.watched.difference() == ""
    assert step.watched.reads_are_unchanged()
    step(inputs, targets)
    assert step.watched.reads_are_unchanged()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive if name in ALIKE else ()) for name in NETWORKS]
)
def test_a_network_stays_the_same(name: str) -> None:
    work = workload_of(name, DEVICE)
    check(membench.compile(work.module, work.loss, (work.inputs, work.targets)), work.inputs, work.targets)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_a_network_of_a_library_with_settings_of_its_own_stays_the_same(name: str) -> None:
    module = TRANSFORMERS[name]()
    inputs = {"input_ids": TOKENS, "use_cache": False} if name != "bert" else {"input_ids": TOKENS}
    check(membench.compile(module, lambda out: out.last_hidden_state.square().mean(), (inputs, ())), inputs)
