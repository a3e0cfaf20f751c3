from collections.abc import Callable

import pytest
import torch
from torch import nn

from membench.capture.capture import capture
from membench.core.step.workload import Workload
from membench.models.resnet import BLOCKS_PER_STAGE, CifarBlock, blocks_per_stage, cifar_resnet, imagenet_resnet


def test_parameters_of_resnet50_are_those_of_torchvision() -> None:
    with torch.device("meta"):
        model = imagenet_resnet(50)
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032


def test_parameters_of_the_cifar_network_are_those_of_the_paper() -> None:
    """Table 6 of He et al. gives 0.85 M for ResNet-56; the exact sum is written out here."""
    expected = 3 * 9 * 16 + 2 * 16  # first convolution and its batch normalisation
    for in_channels, channels in ((16, 16), (16, 32), (32, 64)):
        expected += 9 * in_channels * channels + 17 * 9 * channels**2 + 18 * 2 * channels
    expected += 64 * 10 + 10
    actual = sum(parameter.numel() for parameter in cifar_resnet(56).parameters())
    assert actual == expected == 853_018


def test_bottleneck_halves_the_feature_map_in_its_first_convolution() -> None:
    """He et al., Table 1: conv3_1, conv4_1 and conv5_1 downsample; in the authors' networks by their first 1x1."""
    with torch.device("meta"):
        model = imagenet_resnet(50)
    for stage in (model.layer2, model.layer3, model.layer4):
        assert stage[0].conv1.stride == stage[0].downsample[0].stride == (2, 2)
        assert stage[0].conv2.stride == stage[1].conv1.stride == (1, 1)
    assert model(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)


def test_the_first_shortcut_of_resnet34_is_a_convolution_as_layrub_defines_it() -> None:
    with torch.device("meta"):
        model = imagenet_resnet(34, projects_first_shortcut=True)
        plain = imagenet_resnet(34)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert parameters == sum(parameter.numel() for parameter in plain.parameters()) + 64 * 64 + 2 * 64


@pytest.mark.parametrize(
    "depth", [pytest.param(depth, marks=pytest.mark.slow if depth > 1000 else ()) for depth in BLOCKS_PER_STAGE]
)
def test_imagenet_depth_counts_the_weight_layers(depth: int, configured_model: Callable[[str], nn.Module]) -> None:
    weight_layers = [
        name
        for name, module in configured_model(f"resnet{depth}").named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and "downsample" not in name
    ]
    assert len(weight_layers) == depth


@pytest.mark.parametrize("depth", [20, 56, 110])
def test_cifar_depth_counts_the_weight_layers(depth: int) -> None:
    with torch.device("meta"):
        model = cifar_resnet(depth)
    assert sum(isinstance(module, nn.Conv2d | nn.Linear) for module in model.modules()) == depth


def test_shortcut_takes_every_second_pixel_and_pads_channels_with_zeros() -> None:
    images = torch.randn(2, 16, 8, 8)
    shortcut = CifarBlock(in_channels=16, out_channels=32).shortcut(images)
    assert shortcut.shape == (2, 32, 4, 4)
    assert torch.equal(shortcut[:, 8:24], images[:, :, ::2, ::2])
    assert not shortcut[:, :8].any() and not shortcut[:, 24:].any()


def test_block_of_equal_width_passes_its_input_through() -> None:
    """With a branch that gives zero, the block is the ReLU of its input, and does not change the input."""
    block = CifarBlock(in_channels=16, out_channels=16)
    nn.init.zeros_(block.bn2.weight)
    images = torch.randn(2, 16, 8, 8)
    before = images.clone()
    assert torch.equal(block(images), images.relu())
    assert torch.equal(images, before)


def test_unknown_depths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"depth 60; choose from \[18, 34, 50"):
        imagenet_resnet(60)
    with pytest.raises(ValueError, match=r"6n\+2 layers"):
        cifar_resnet(57)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [34, 50])
def test_the_shortcut_may_come_first_and_the_result_is_the_same(depth: int) -> None:
    plain, first = imagenet_resnet(depth), imagenet_resnet(depth, shortcut_first=True)
    first.load_state_dict(plain.state_dict())
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(plain(images), first(images))
    inputs, targets = (images,), (torch.zeros(2, dtype=torch.int64),)
    graph = capture(Workload("resnet", first, nn.functional.cross_entropy, inputs, targets)).graph
    names = [graph.layers[layer.layer] for layer in graph.forward_layers]
    assert names.index("layer2.0.downsample.0") < names.index("layer2.0.conv1")


def test_layrubs_resnet56_has_a_projection_in_each_stage() -> None:
    """58 convolutions in ``examples/cifar10/resnet_56_train_test.prototxt`` of CGCL-codes/Layrub."""
    model = cifar_resnet(56, projects_shortcuts=True)
    assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) == 58
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    added = sum(a * b + 2 * b for a, b in ((16, 16), (16, 32), (32, 64)))
    assert sum(parameter.numel() for parameter in model.parameters()) == 853_018 + added


@pytest.mark.parametrize(("depth", "blocks"), [(1520, 506), (2504, 834), (10_001, 3333)])
def test_depths_beyond_the_configured_ones_are_3n_plus_2(depth: int, blocks: int) -> None:
    stages = blocks_per_stage(depth)
    assert sum(stages) == blocks == (depth - 2) / 3
    assert stages[1] / stages[2] == pytest.approx(57 / 270, rel=0.01)
    with pytest.raises(ValueError, match=r"depth \d+; choose from"):
        blocks_per_stage(depth + 1)
