"""Megatron-LM's GPT: sizes, recomputation, the fused kernel, and the collectives of its tensor parallelism."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

from experiments.validation.programs.megatron_lm import MegatronLM, bias_dropout_add
from membench.core import configuration
from membench.core.graph.collective import CollectiveKind
from membench.core.step.workload import Workload
from membench.models.llama import TokenLoss
from membench.steps.parallel.ranks import ranks_of
from membench.steps.predict import Predictor
from membench.steps.request import StepRequest
from membench.strategies.pytorch import PyTorch

SMALL = {"layers": 2, "width": 64, "heads": 4, "vocabulary": 128, "length": 32}


@pytest.mark.parametrize(
    ("layers", "width", "heads", "billion"), [(24, 2304, 24, 1.7), (60, 10240, 80, 76.1), (128, 25600, 160, 1008)]
)
def test_layers_and_widths_are_the_sizes_that_the_table_names(
    layers: int, width: int, heads: int, billion: float
) -> None:
    with torch.device("meta"):
        made = MegatronLM(layers=layers, width=width, heads=heads, length=2048, vocabulary=51200)
    weights = sum(weight.numel() for weight in made.parameters())
    assert weights == pytest.approx(billion * 1e9, rel=0.03)
    # Narayanan et al. 2021, equation 2, and the last norm
    formula = 12 * layers * width**2 + 13 * layers * width + (51200 + 2048) * width
    assert weights == formula + 2 * width


def test_recomputation_changes_nothing() -> None:
    found = []
    for checkpointed_layers in (0, 1, None):
        torch.manual_seed(0)
        made = MegatronLM(**SMALL, checkpointed_layers=checkpointed_layers)
        made(torch.randint(128, (2, 32))).float().mean().backward()
        found.append([weight.grad for weight in made.parameters()])
    for gradient, *again in zip(*found, strict=True):
        assert all(torch.equal(gradient, each) for each in again)


def test_the_fused_kernel_has_the_result_and_gradients_of_its_operators() -> None:
    leaves = torch.randn(5, 3, 8), torch.randn(8), torch.randn(5, 3, 8)
    results = []
    for is_fused in (True, False):
        update, bias, residual = (leaf.clone().requires_grad_() for leaf in leaves)
        torch.manual_seed(1)
        if is_fused:
            output = bias_dropout_add(update, bias, residual, 0.5)[0]
        else:
            output = residual + nn.functional.dropout(update + bias, 0.5)
        results.append([output, *torch.autograd.grad(output.square().sum(), (update, bias, residual))])
    for fused, plain in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain)


def test_a_layer_adds_up_its_features_twice_in_each_of_its_three_passes() -> None:
    with torch.device("meta"):
        module = MegatronLM(**SMALL)
        tokens = torch.zeros(2, 32, dtype=torch.long)
    cluster = replace(configuration.load("cluster", "dgx_a100_80gb"), devices_per_host=2)
    ranks = ranks_of(module, cluster, parallel={"tp": 2})
    graph = Predictor(
        Workload("gpt", module, TokenLoss(single=True), (tokens,), (tokens,)), StepRequest(PyTorch()), ranks
    ).graph_on()
    plain = graph.plain or graph
    collectives = [task.collective for task in plain.tasks if task.collective]
    sums_bytes = Counter(each.size_bytes for each in collectives)
    features_bytes, numbers_bytes = 2 * 32 * 64 * 2, 2 * 32 * 4
    assert {each.kind for each in collectives} == {CollectiveKind.ALL_REDUCE}
    # and those of the embedding, and of the head's gradient
    assert sums_bytes[features_bytes] == 2 * 3 * SMALL["layers"] + 2
    assert sums_bytes[numbers_bytes] == 3, sums_bytes


@pytest.mark.parametrize(("samples", "operators"), [(2, 0), (1, 2)])
def test_softmax_is_several_operators_where_heads_times_samples_are_no_multiple_of_four(
    samples: int, operators: int
) -> None:
    with torch.device("meta"):
        module = MegatronLM(**{**SMALL, "heads": 2}, checkpointed_layers=0)
        tokens = torch.zeros(samples, 32, dtype=torch.long)
    graph = Predictor(
        Workload("gpt", module, TokenLoss(single=True), (tokens,), (tokens,)), StepRequest(PyTorch())
    ).graph_on()
    called = Counter(task.call.operator for task in (graph.plain or graph).tasks if task.call)
    assert called["aten._softmax.default"] == SMALL["layers"]
    assert called["aten.masked_fill_.Scalar"] == operators, called


def test_softmax_of_several_operators_hides_later_tokens() -> None:
    torch.manual_seed(0)
    module = MegatronLM(**{**SMALL, "heads": 2}).eval()
    tokens = torch.randint(128, (1, 32))
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 128
    with torch.no_grad():
        torch.testing.assert_close(module(tokens)[:, :-1], module(changed)[:, :-1], rtol=0, atol=0)
