from collections.abc import Callable

import pytest
import torch
from torch import nn

from membench.models.alexnet import alexnet, caffenet


@pytest.mark.parametrize("build", [alexnet, caffenet])
def test_parameters_are_those_of_caffe(build: Callable[[], nn.Sequential]) -> None:
    with torch.device("meta"):
        model = build()
    assert sum(parameter.numel() for parameter in model.parameters()) == 60_965_224


def test_networks_differ_in_the_order_of_norm_and_pool() -> None:
    with torch.device("meta"):
        of_alexnet = [name for name, _ in alexnet().named_children()]
        of_caffenet = [name for name, _ in caffenet().named_children()]
    assert of_alexnet[:8] == ["conv1", "relu1", "norm1", "pool1", "conv2", "relu2", "norm2", "pool2"]
    assert of_caffenet[:8] == ["conv1", "relu1", "pool1", "norm1", "conv2", "relu2", "pool2", "norm2"]
    assert of_alexnet[8:] == of_caffenet[8:]


def test_feature_maps_have_the_sizes_of_caffe() -> None:
    with torch.device("meta"):
        model = alexnet()
        x = torch.empty(2, 3, 227, 227)
    sizes = {}
    for name, layer in model.named_children():
        x = layer(x)
        sizes[name] = tuple(x.shape[1:])
    assert sizes["conv1"] == sizes["norm1"] == (96, 55, 55)
    assert sizes["pool1"] == (96, 27, 27)
    assert sizes["pool2"] == (256, 13, 13)
    assert sizes["pool5"] == (256, 6, 6)
    assert sizes["fc8"] == (1000,)
