from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from membench.models.fcn import FCN8s, _upsampling


def test_parameters_are_those_of_vgg16_and_of_scores_and_deconvolutions(
    configured_model: Callable[[str], nn.Module],
) -> None:
    """VGG-16 (138,357,544) without its last linear layer; three score layers; kernels of 4, 4 and 16."""
    scores = sum(21 * (channels + 1) for channels in (4096, 512, 256))
    deconvolutions = 21 * 21 * (4**2 + 4**2 + 16**2)
    expected = 138_357_544 - 1000 * 4097 + scores + deconvolutions
    assert sum(parameter.numel() for parameter in configured_model("fcn8s").parameters()) == expected


@pytest.mark.parametrize("size", [32, 64])
def test_every_pixel_has_a_score_for_each_class(size: int) -> None:
    with torch.device("meta"):
        scores = FCN8s(classes=5).eval()(torch.empty(2, 3, size, size))
    assert scores.shape == (2, 5, size, size)


@pytest.mark.parametrize("factor", [2, 8])
def test_deconvolutions_begin_as_bilinear_interpolation(factor: int) -> None:
    """Compared inside the border, where interpolation repeats the last pixel."""
    scores = torch.randn(1, 3, 6, 6)
    enlarged = _upsampling(3, factor=factor)(scores)
    expected = functional.interpolate(scores, scale_factor=factor, mode="bilinear")
    inner = slice(factor, -factor)
    torch.testing.assert_close(enlarged[..., inner, inner], expected[..., inner, inner])
