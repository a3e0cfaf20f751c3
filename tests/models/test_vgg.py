from collections.abc import Callable

import pytest
from torch import nn

from membench.models.vgg import CHANNELS_PER_GROUP, CONVOLUTIONS_PER_GROUP, vgg

Build = Callable[[str], nn.Module]


def _convolutions(model: nn.Module) -> list[nn.Conv2d]:
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)]


@pytest.mark.parametrize(("depth", "expected"), [(16, 138_357_544), (19, 143_667_240)])
def test_parameters_are_those_of_torchvision(depth: int, expected: int, configured_model: Build) -> None:
    model = configured_model(f"vgg{depth}")
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_every_hundred_more_convolutions_add_the_same_parameters(configured_model: Build) -> None:
    """109.9 M each: 20 convolutions per group that keep the group's channels."""
    added = sum(20 * (9 * channels**2 + channels) for channels in CHANNELS_PER_GROUP)
    models = [configured_model(f"vgg{depth}") for depth in (19, 116, 216)]
    counts = [sum(parameter.numel() for parameter in model.parameters()) for model in models]
    assert added == 109_884_160
    assert counts[2] - counts[1] == counts[1] - counts[0] == added


@pytest.mark.parametrize("depth", [16, 19, 101])
def test_numbers_of_simonyan_and_zisserman_and_of_modnn_count_the_linear_layers(
    depth: int, configured_model: Build
) -> None:
    assert len(_convolutions(configured_model(f"vgg{depth}"))) == depth - 3


def test_groups_of_the_network_of_modnn_grow_in_proportion() -> None:
    """Each has its share of the 98 convolutions, to the nearest half."""
    shares = [98 * convolutions / 16 for convolutions in CONVOLUTIONS_PER_GROUP[19]]
    assert CONVOLUTIONS_PER_GROUP[101] == pytest.approx(shares, abs=0.5)


@pytest.mark.parametrize("depth", [depth for depth in CONVOLUTIONS_PER_GROUP if depth > 101])
def test_numbers_of_vdnn_count_the_convolutions(depth: int, configured_model: Build) -> None:
    assert len(_convolutions(configured_model(f"vgg{depth}"))) == depth


def test_groups_keep_their_channels(configured_model: Build) -> None:
    channels = [convolution.out_channels for convolution in _convolutions(configured_model("vgg116"))]
    assert channels == 22 * [64] + 22 * [128] + 24 * [256] + 48 * [512]


def test_unknown_depth_is_refused() -> None:
    with pytest.raises(ValueError, match="no VGG of depth 13"):
        vgg(13)
