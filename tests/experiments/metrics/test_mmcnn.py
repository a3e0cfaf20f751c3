"""mmCNN's own number: the memory that the paper counts for the original network."""

import torch
from torch import nn

from experiments.mmcnn.metrics import original_memory_bytes
from membench.capture.capture import capture
from membench.core.step.workload import Workload


def test_each_layer_counts_its_weights_input_and_output() -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    ).eval()  # fmt: skip
    graph = capture(Workload("small", module, None, (torch.empty(1, 3, 8, 8),))).graph
    image, wide, pooled, output = 3 * 64, 8 * 64, 8 * 16, 10
    layers = image + (image + wide) + (wide + wide) + (wide + pooled) + (pooled + output)
    weights = (3 * 8 * 9 + 8) + (128 * 10 + 10)
    assert original_memory_bytes(graph) == 4 * (layers + weights)
