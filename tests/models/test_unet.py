"""U-Net against its paper: Figure 1's sizes and convolutions, and the published number of parameters."""

import pytest
import torch
from torch import nn

from membench.models.unet import UNet


def unet(**options: int) -> UNet:
    with torch.device("meta"):
        return UNet(**options)


def parameters(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def test_features_have_the_sizes_of_figure_1() -> None:
    module = unet()
    seen: list[tuple[int, ...]] = []
    for convolutions in (*module.down, *module.up):
        convolutions.register_forward_hook(lambda *args: seen.append((args[2].shape[1], args[2].shape[2])))
    scores = module(torch.zeros(1, 1, 572, 572, device="meta"))
    down = [(64, 568), (128, 280), (256, 136), (512, 64), (1024, 28)]
    assert seen == [*down, (512, 52), (256, 100), (128, 196), (64, 388)]
    assert scores.shape == (1, 2, 388, 388)


def test_there_are_the_papers_convolutions() -> None:
    kinds = (nn.Conv2d, nn.ConvTranspose2d)
    assert sum(isinstance(layer, kinds) for layer in unet().modules()) == 23  # section 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 31_030_658),
        ({"channels": 3, "classes": 1, "padding": 1, "batch_norm": True}, 31_037_633),  # as commonly published
    ],
)
def test_parameters(options: dict[str, int], expected: int) -> None:
    assert parameters(unet(**options)) == expected


@pytest.mark.parametrize("side", [64, 70, 100])
def test_padded_convolutions_keep_the_resolution_of_images_that_halve_evenly(side: int) -> None:
    scores = unet(width=2, padding=1)(torch.zeros(2, 1, 16 * (side // 16), 64, device="meta"))
    assert scores.shape == (2, 2, 16 * (side // 16), 64)


def test_the_copied_features_are_the_middle_ones() -> None:
    """A shift of the image shifts the scores by as much: no copy is cropped off its centre."""
    torch.manual_seed(0)
    module = UNet(width=2, depth=1)
    image = torch.randn(1, 1, 40, 40)
    scores, shifted = module(image), module(image.roll((2, 4), (2, 3)))
    inner = slice(6, -6)
    torch.testing.assert_close(scores.roll((2, 4), (2, 3))[..., inner, inner], shifted[..., inner, inner])
