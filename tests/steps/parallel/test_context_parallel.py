"""Context parallelism, predicted: what a rank computes and holds, and what is refused."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import membench
from membench.core import configuration
from membench.core.errors import MembenchError, UnsupportedModel
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import Kind, TaskGraph
from membench.core.step.workload import Workload
from membench.models.llama import Llama, TokenLoss
from membench.steps.parallel.ranks import ranks_of
from membench.steps.predict import Predictor
from membench.steps.predicted.prediction import Prediction
from membench.steps.request import StepRequest
from membench.strategies.pytorch import PyTorch

LAYERS, WIDTH, LENGTH = 2, 256, 512
HOST_OF_FOUR = replace(configuration.load("cluster", "dgx_h100"), devices_per_host=4)

with torch.device("meta"):
    LLAMA = Llama(layers=LAYERS, width=WIDTH, heads=8, groups=8, inner=512, vocabulary=1024, length=2 * LENGTH)


def tokens(length: int) -> Tensor:
    return torch.zeros(1, length, dtype=torch.long, device="meta")


def predicted(parallel: Mapping[str, int], length: int = LENGTH, **options: Any) -> Prediction:
    given = {"cluster": HOST_OF_FOUR, "precision": "bf16", "optimizer": "adamw", **options}
    return membench.predict(LLAMA, TokenLoss(), (tokens(length), tokens(length)), parallel=parallel, **given)


def graph_of(parallel: Mapping[str, int]) -> TaskGraph:
    ranks = ranks_of(LLAMA, HOST_OF_FOUR, parallel=parallel)
    batch = (tokens(LENGTH),)
    workload = Workload("llama", LLAMA, TokenLoss(), batch, batch, precision=Precision.of_step("bf16"))
    return Predictor(workload, StepRequest(PyTorch()), ranks=ranks).graph_on()


def test_attention_is_a_ring_over_the_parts_of_a_sequence() -> None:
    graph = graph_of({"fsdp": 2, "cp": 2})
    names = [task.call.operator for task in graph.tasks if task.call]
    for direction in ("", "_backward"):
        assert names.count(f"aten._scaled_dot_product_cudnn_attention{direction}.default") == 2 * LAYERS
    axes = [task.collective.axis for task in graph.tasks if task.collective]
    assert axes.count("cp") >= 3 * LAYERS
    assert set(axes) == {"cp", "fsdp+cp"}


def attention_operations(parallel: Mapping[str, int]) -> int:
    tasks = graph_of(parallel).tasks
    return sum(task.operations for task in tasks if task.kind is Kind.ATTENTION)


def test_the_ranks_of_a_ring_compute_together_what_causal_attention_does() -> None:
    assert 2 * attention_operations({"fsdp": 2, "cp": 2}) == attention_operations({"fsdp": 4})


@pytest.mark.slow
def test_weights_are_in_shards_over_both_axes() -> None:
    parts = [predicted(axes).parts_bytes for axes in ({"fsdp": 4}, {"fsdp": 2, "cp": 2}, {"cp": 4})]
    assert len({(each["weights"], each["optimizer state"]) for each in parts}) == 1


@pytest.mark.slow
def test_a_sequence_twice_as_long_on_twice_the_ranks_needs_no_more_memory() -> None:
    short, long = predicted({"fsdp": 4}), predicted({"fsdp": 2, "cp": 2}, 2 * LENGTH)
    whole = predicted({"fsdp": 4}, 2 * LENGTH)
    # beside its part, a rank holds the keys and values of all ranks for one attention
    added = long.allocated_bytes - short.allocated_bytes
    assert added < 0.25 * (whole.allocated_bytes - short.allocated_bytes)


@pytest.mark.slow
def test_stages_and_divided_weights_combine_with_it() -> None:
    alone, both = predicted({"fsdp": 2, "cp": 2}), predicted({"cp": 2, "tp": 2})
    assert both.allocated_bytes < alone.allocated_bytes
    stages = predicted({"pp": 2, "cp": 2}, accumulate=4).stages
    assert len(stages) == 2 and all(stage.exposed_communication_s > 0 for stage in stages)


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(MembenchError, match="sequences of 500 are not divided into 8 equal parts"):
        predicted({"cp": 4}, 500)
    features = torch.zeros(64, device="meta")
    with torch.device("meta"):
        layers = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    with pytest.raises(MembenchError, match="along the second dimension"):
        membench.predict(layers, nn.functional.mse_loss, (features, features), cluster=HOST_OF_FOUR, parallel={"cp": 4})


class Bidirectional(nn.Module):
    """Attention without a causal mask."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, features: Tensor) -> Tensor:
        for block in self.blocks:
            heads = block(features).unflatten(-1, (8, -1)).transpose(1, 2)
            features = nn.functional.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)
        return features


def test_attention_that_torch_does_not_divide_is_refused() -> None:
    with torch.device("meta"):
        module, features = Bidirectional(), torch.zeros(2, LENGTH, WIDTH)
    with pytest.raises(UnsupportedModel, match="is_causal"):
        membench.predict(module, nn.functional.mse_loss, (features, features), cluster=HOST_OF_FOUR, parallel={"cp": 4})
