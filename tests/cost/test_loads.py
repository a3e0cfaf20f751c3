"""Kernels whose threads wait for each load: what a thread loads, and what an H200's operators reached."""

import csv
import re
from collections.abc import Iterator
from statistics import median

import pytest
import torch
from torch import nn
from torch.nn import functional

from membench.capture.capture import capture
from membench.capture.trace import ANY_GPU
from membench.core import configuration
from membench.core.configuration import ROOT
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import Task
from membench.core.step.workload import Workload
from membench.cost.kernels import kernels_of

RATES = configuration.load("framework", "pytorch").efficiency.kernels
H200 = configuration.load("device", "h200")
LONG_US = 20
"""Of measured operators that are counted: shorter ones are mostly the start of a kernel."""
PASSES = {
    "native_batch_norm": 3 / 2,
    "cudnn_batch_norm": 3 / 2,
    **dict.fromkeys(("native_batch_norm_backward", "cudnn_batch_norm_backward", "native_layer_norm_backward"), 5 / 3),
}
MANY = 256
"""Channels, each with a thread block, that keep all multiprocessors busy."""


class Pooled(nn.Module):
    def __init__(self, pooling: nn.Module) -> None:
        super().__init__()
        self.before, self.pooling = nn.Conv2d(3, 8, 1), pooling

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pooled: torch.Tensor = self.pooling(self.before(images))
        return pooled


def loads(module: nn.Module, batch: torch.Tensor, precision: Precision = Precision.FP32) -> dict[str, float]:
    """What a thread loads at a time, by operator."""
    workload = Workload("net", module, lambda made: made.float().square().sum(), (batch,), precision=precision)
    tasks: tuple[Task, ...] = capture(workload, ANY_GPU).graph.tasks
    return {task.call.operator.split(".")[1]: kernels_of(task)[0].load_bytes for task in tasks if task.call}


def test_a_thread_of_layer_norm_loads_an_element() -> None:
    found = loads(nn.LayerNorm(16), torch.zeros(8, 16))
    assert (found["native_layer_norm"], found["native_layer_norm_backward"]) == (4, 4)


@pytest.mark.parametrize(
    ("pooling", "name", "load_bytes"),
    [
        (nn.MaxPool2d(2), "max_pool2d_with_indices_backward", 4.0),
        (nn.MaxPool2d(3, 2, 1), "max_pool2d_with_indices_backward", 4 / 1.5),
        (nn.AvgPool2d(3, 1, 1), "avg_pool2d_backward", 4 / 3),
        (nn.AvgPool2d(1, 2), "avg_pool2d_backward", 4.0),
        (nn.MaxPool2d(3, 2, 1), "max_pool2d_with_indices", 4.0),
    ],
)
def test_a_gradient_of_pooling_waits_for_each_row_of_windows(pooling: nn.Module, name: str, load_bytes: float) -> None:
    assert loads(Pooled(pooling), torch.zeros(2, 3, 8, 8))[name] == pytest.approx(load_bytes)


def test_other_operators_have_many_loads_under_way() -> None:
    class Others(nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return functional.gelu(rows).softmax(-1) + rows

    module = nn.Sequential(nn.Linear(16, 16), Others())
    assert set(loads(module, torch.zeros(8, 16)).values()) == {0}


def rows_of(operator: str) -> Iterator[dict[str, str]]:
    with (ROOT / "results" / "operators" / "nvidia_h200.csv").open() as file:
        for row in csv.DictReader(file):
            channels = re.search(r"\[\d+,(\d+)", row["arguments"])
            is_wide = "batch_norm" not in operator or (channels is not None and int(channels[1]) >= MANY)
            if row["operator"].split(".")[0] == operator and float(row["time_us"]) >= LONG_US and is_wide:
                yield row


@pytest.mark.parametrize(
    ("operator", "load_bytes"),
    [
        ("native_batch_norm", 2),
        ("native_batch_norm_backward", 4),
        ("cudnn_batch_norm", 8),
        ("cudnn_batch_norm_backward", 8),
        ("native_layer_norm", 4),
        ("native_layer_norm_backward", 4),
        ("max_pool2d_with_indices", 2),
    ],
)
def test_an_h200_moves_what_other_cards_predict_within_a_factor(operator: str, load_bytes: float) -> None:
    """No time of an H200 is fitted: older cards wait for longer, and pooling finds its windows in a cache."""
    multiprocessor = H200.multiprocessor
    predicted = H200.multiprocessors * multiprocessor.threads * load_bytes * H200.clock_hz / RATES.load_clocks
    measured = median(
        float(row["moved_bytes"]) * PASSES.get(operator, 1) / (float(row["time_us"]) * 1e-6)
        for row in rows_of(operator)
    )
    assert 1 / 3 < predicted / measured < 3 / 2


def test_products_with_odd_rows_reach_the_median_of_gpt2s_last_layer() -> None:
    found = [
        float(row["operations"]) / (float(row["time_us"]) * 1e-6) / H200.multiprocessors
        for row in rows_of("mm")
        if "50257" in row["arguments"]
    ]
    assert len(found) == 3
    assert RATES.unaligned_ops_per_s == pytest.approx(median(found), rel=0.03)
