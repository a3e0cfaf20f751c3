import pytest
import torch
from torch import nn

from membench.models.wide_resnet import PostActivationBlock, WideBlock, layrub_wide_resnet, wide_resnet


def test_parameters_of_wrn_28_10() -> None:
    """36.5 M in Table 4 of the paper; the exact sum is written out here."""
    expected = 3 * 9 * 16
    in_channels = 16
    for channels in (160, 320, 640):
        # first block
        expected += 2 * in_channels + 9 * in_channels * channels + 2 * channels + 9 * channels**2
        expected += in_channels * channels  # its projection
        expected += 3 * 2 * (2 * channels + 9 * channels**2)
        in_channels = channels
    expected += 2 * 640 + 640 * 10 + 10
    with torch.device("meta"):
        model = wide_resnet(depth=28, widening_factor=10)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected == 36_479_194


@pytest.mark.parametrize("depth", [16, 22, 28, 40])
def test_depth_counts_all_convolutions(depth: int) -> None:
    with torch.device("meta"):
        model = wide_resnet(depth=depth, widening_factor=2)
    assert sum(isinstance(module, nn.Conv2d) for module in model.modules()) == depth


def test_depth_8_counts_one_block_per_group_without_projections() -> None:
    with torch.device("meta"):
        model = wide_resnet(depth=8, widening_factor=128)
    blocks = [module for module in model.modules() if isinstance(module, WideBlock)]
    assert [block.conv2.out_channels for block in blocks] == [16 * 128, 32 * 128, 64 * 128]
    weight_layers = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and "projection" not in name
    ]
    assert len(weight_layers) == 8


def test_width_1_projects_only_where_channels_double() -> None:
    """WRN-16-1 is the plain network: the first group already has its 16 channels."""
    model = wide_resnet(depth=16, widening_factor=1)
    projections = [name for name, _ in model.named_modules() if name.endswith("projection")]
    assert projections == ["group2.0.projection", "group3.0.projection"]


def test_shortcut_is_the_input_where_channels_agree_and_its_activation_where_not() -> None:
    images = torch.randn(2, 4, 8, 8)
    same = WideBlock(in_channels=4, out_channels=4, stride=1)
    nn.init.zeros_(same.conv2.weight)
    assert torch.equal(same(images), images)
    wider = WideBlock(in_channels=4, out_channels=8, stride=2)
    nn.init.zeros_(wider.conv2.weight)
    assert wider.projection is not None
    assert torch.equal(wider(images), wider.projection(wider.bn1(images).relu()))


def test_unknown_depth_is_refused() -> None:
    with pytest.raises(ValueError, match=r"6n\+4 layers"):
        wide_resnet(depth=20, widening_factor=1)


def test_layrubs_wide_network_is_its_published_definition() -> None:
    """28 convolutions and 22 batch norms in ``models/wrn/wrn_28_10_train_val.prototxt`` of CGCL-codes/Layrub."""
    with torch.device("meta"):
        model = layrub_wide_resnet(depth=28, widening_factor=10)
    kinds = [type(module) for module in model.modules()]
    assert (kinds.count(nn.Conv2d), kinds.count(nn.BatchNorm2d), kinds.count(nn.ReLU)) == (28, 22, 22)
    behind_sums = [len(module.after) for module in model.modules() if isinstance(module, PostActivationBlock)]
    assert behind_sums == [2, 2, 2, 0] * 3
    assert model(torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 10)
    with pytest.raises(ValueError, match="6n\\+4"):
        layrub_wide_resnet(depth=8, widening_factor=10)
