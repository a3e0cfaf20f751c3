"""mmCNN's own numbers: the memory that the paper counts for the original network, and the count of copies."""

import torch
from torch import nn

from experiments.mmcnn.metrics import original_memory_bytes, step_metrics
from membench.capture.capture import capture
from membench.core.graph.schedule import RepeatedSchedule
from membench.core.step.workload import Workload
from membench.steps.plan import plan
from membench.strategies.mmcnn.strategy import Mmcnn
from tests.helpers.planning.graphs import COST


def test_each_layer_counts_its_weights_input_and_output() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    ).eval()  # fmt: skip
    graph = capture(Workload("small", module, None, (torch.empty(1, 3, 8, 8),))).graph
    image, wide, pooled, output = 3 * 64, 8 * 64, 8 * 16, 10
    layers = image + (image + wide) + (wide + wide) + (wide + pooled) + (pooled + output)
    weights = (3 * 8 * 9 + 8) + (128 * 10 + 10)
    assert original_memory_bytes(graph) == 4 * (layers + weights)


def test_a_smaller_limit_takes_more_copies() -> None:
    """Above the whole network nothing is copied; below it each of four weights and biases at least once."""
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)).eval()
    graph = COST.annotate(capture(Workload("small", module, None, (torch.empty(1, 3, 8, 8),))).graph)
    plans = [plan(graph, Mmcnn(), COST, budget_bytes) for budget_bytes in (None, 22_000, 6_000)]
    none, some, more = (step_metrics((RepeatedSchedule(each),), (), None)["copies"] for each in plans)
    assert none == 0 < 4 < some < more
