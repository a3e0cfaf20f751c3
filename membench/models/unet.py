"""U-Net for segmentation.

Ronneberger et al. 2015, "U-Net: Convolutional Networks for Biomedical Image Segmentation".
"""

import torch
from torch import Tensor, nn


class UNet(nn.Module):
    """Figure 1: a contracting path, an expansive path, and a copy of each resolution's features across.

    Two 3x3 convolutions with ReLU at each resolution, 2x2 max pooling with doubled channels on the way down, 2x2
    up-convolutions that halve the channels on the way up, and a 1x1 convolution to the classes: 23 convolutions.

    Args:
        channels: number of channels of the images.
        classes: number of classes of each pixel.
        width: channels at the full resolution.
        depth: number of poolings.
        padding: 0 as published, where the copied features are cropped to the smaller ones of the expansive path
            (572 x 572 pixels in, 388 x 388 out); 1, as it is commonly used, keeps the resolution.
        batch_norm: normalize after each 3x3 convolution, which then has no bias; the paper does not.
    """

    def __init__(
        self,
        channels: int = 1,
        classes: int = 2,
        *,
        width: int = 64,
        depth: int = 4,
        padding: int = 0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        inputs = [channels, *widths]
        self.down = nn.ModuleList(
            _convolutions(before, after, padding, batch_norm) for before, after in zip(inputs, widths, strict=False)
        )
        self.pool = nn.MaxPool2d(2)
        self.rise = nn.ModuleList(nn.ConvTranspose2d(2 * after, after, 2, stride=2) for after in reversed(widths[:-1]))
        self.up = nn.ModuleList(_convolutions(2 * after, after, padding, batch_norm) for after in reversed(widths[:-1]))
        self.classify = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores (batch, classes, height, width) of the pixels of images (batch, channels, height, width)."""
        *copied, features = self._contract(images)
        for rise, convolutions in zip(self.rise, self.up, strict=True):
            risen = rise(features)
            features = convolutions(torch.cat([_cropped(copied.pop(), risen), risen], 1))
        return self.classify(features)

    def _contract(self, features: Tensor) -> list[Tensor]:
        """Return the features of each resolution, the full one first."""
        found: list[Tensor] = []
        for convolutions in self.down:
            features = convolutions(self.pool(found[-1]) if found else features)
            found.append(features)
        return found


def _convolutions(inputs: int, outputs: int, padding: int, batch_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers.append(nn.Conv2d(channels, outputs, 3, padding=padding, bias=not batch_norm))
        if batch_norm:
            layers.append(nn.BatchNorm2d(outputs))
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


def _cropped(features: Tensor, like: Tensor) -> Tensor:
    """Return the middle of features that has the height and width of others."""
    top, left = ((big - small) // 2 for big, small in zip(features.shape[2:], like.shape[2:], strict=True))
    return features[:, :, top : top + like.shape[2], left : left + like.shape[3]]
