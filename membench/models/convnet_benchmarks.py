"""AlexNet and OverFeat as convnet-benchmarks defines them, the reference networks of vDNN (section 4.3).

``torch7/imagenet_winners`` of the repository soumith/convnet-benchmarks, which leaves dropout out.

- AlexNet: Krizhevsky, "One weird trick for parallelizing convolutional neural networks" (2014): 224 px, no groups and
  no normalisation. Not the network of 2012 that Caffe trains (`alexnet.py`).
- OverFeat: Sermanet et al., "OverFeat: Integrated Recognition, Localization and Detection using Convolutional
  Networks" (ICLR 2014), the fast network of Table 1: 231 px.
"""

from itertools import pairwise

from torch import nn


def alexnet() -> nn.Sequential:
    """Return AlexNet for 1,000 classes."""
    return nn.Sequential(
        *_convolution(3, 64, 11, stride=4, padding=2),
        nn.MaxPool2d(3, stride=2),
        *_convolution(64, 192, 5, padding=2),
        nn.MaxPool2d(3, stride=2),
        *_convolution(192, 384, 3, padding=1),
        *_convolution(384, 256, 3, padding=1),
        *_convolution(256, 256, 3, padding=1),
        nn.MaxPool2d(3, stride=2),
        *_classifier(256 * 6 * 6, 4096, 4096),
    )


def overfeat() -> nn.Sequential:
    """Return OverFeat's fast network for 1,000 classes."""
    return nn.Sequential(
        *_convolution(3, 96, 11, stride=4),
        nn.MaxPool2d(2),
        *_convolution(96, 256, 5),
        nn.MaxPool2d(2),
        *_convolution(256, 512, 3, padding=1),
        *_convolution(512, 1024, 3, padding=1),
        *_convolution(1024, 1024, 3, padding=1),
        nn.MaxPool2d(2),
        *_classifier(1024 * 6 * 6, 3072, 4096),
    )


def _convolution(
    in_channels: int, out_channels: int, size: int, *, stride: int = 1, padding: int = 0
) -> list[nn.Module]:
    return [nn.Conv2d(in_channels, out_channels, size, stride, padding), nn.ReLU(inplace=True)]


def _classifier(*sizes: int) -> list[nn.Module]:
    layers: list[nn.Module] = [nn.Flatten()]
    for in_features, out_features in pairwise(sizes):
        layers += [nn.Linear(in_features, out_features), nn.ReLU(inplace=True)]
    return [*layers, nn.Linear(sizes[-1], 1000)]
