"""GoogLeNet as BVLC Caffe trains it (``models/bvlc_googlenet``).

Szegedy et al.: "Going Deeper with Convolutions" (CVPR 2015), Table 1 and section 5: local
response normalisation and two auxiliary classifiers. Not torchvision's ``googlenet``, which has batch
normalisation, no LRN, and 3x3 where the paper has 5x5 convolutions.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn


class Inception(nn.Module):
    """Four branches over the same input, concatenated; ``channels`` are the last six "#" columns of Table 1."""

    def __init__(self, in_channels: int, *, channels: tuple[int, int, int, int, int, int]) -> None:
        super().__init__()
        conv_1x1, reduce_3x3, conv_3x3, reduce_5x5, conv_5x5, projection = channels
        self.conv_1x1 = _convolution(in_channels, conv_1x1, 1)
        self.reduce_3x3 = _convolution(in_channels, reduce_3x3, 1)
        self.conv_3x3 = _convolution(reduce_3x3, conv_3x3, 3, padding=1)
        self.reduce_5x5 = _convolution(in_channels, reduce_5x5, 1)
        self.conv_5x5 = _convolution(reduce_5x5, conv_5x5, 5, padding=2)
        self.pool = nn.MaxPool2d(3, stride=1, padding=1)
        self.projection = _convolution(in_channels, projection, 1)

    def forward(self, x: Tensor) -> Tensor:
        branches = [
            self.conv_1x1(x),
            self.conv_3x3(self.reduce_3x3(x)),
            self.conv_5x5(self.reduce_5x5(x)),
            self.projection(self.pool(x)),
        ]
        return torch.cat(branches, dim=1)


class GoogLeNet(nn.Module):
    """The network; in training it returns (logits, first auxiliary logits, second), else logits alone."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = _convolution(3, 64, 7, stride=2, padding=3)
        self.pool1 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.norm1 = nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75)
        self.reduce2 = _convolution(64, 64, 1)
        self.conv2 = _convolution(64, 192, 3, padding=1)
        self.norm2 = nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75)
        self.pool2 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.inception3a = Inception(192, channels=(64, 96, 128, 16, 32, 32))
        self.inception3b = Inception(256, channels=(128, 128, 192, 32, 96, 64))
        self.pool3 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.inception4a = Inception(480, channels=(192, 96, 208, 16, 48, 64))
        self.auxiliary1 = _auxiliary_classifier(512)
        self.inception4b = Inception(512, channels=(160, 112, 224, 24, 64, 64))
        self.inception4c = Inception(512, channels=(128, 128, 256, 24, 64, 64))
        self.inception4d = Inception(512, channels=(112, 144, 288, 32, 64, 64))
        self.auxiliary2 = _auxiliary_classifier(528)
        self.inception4e = Inception(528, channels=(256, 160, 320, 32, 128, 128))
        self.pool4 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.inception5a = Inception(832, channels=(256, 160, 320, 32, 128, 128))
        self.inception5b = Inception(832, channels=(384, 192, 384, 48, 128, 128))
        self.pool5 = nn.AvgPool2d(7, stride=1)
        self.drop = nn.Dropout(0.4)
        self.classifier = nn.Linear(1024, 1000)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        x = self.norm1(self.pool1(self.conv1(images)))
        x = self.pool2(self.norm2(self.conv2(self.reduce2(x))))
        x = self.pool3(self.inception3b(self.inception3a(x)))
        x = self.inception4a(x)
        if self.training:
            auxiliary1 = self.auxiliary1(x)
        x = self.inception4d(self.inception4c(self.inception4b(x)))
        if self.training:
            auxiliary2 = self.auxiliary2(x)
        x = self.pool4(self.inception4e(x))
        x = self.pool5(self.inception5b(self.inception5a(x)))
        logits = self.classifier(torch.flatten(self.drop(x), 1))
        return (logits, auxiliary1, auxiliary2) if self.training else logits


class GoogLeNetLoss(nn.Module):
    """Cross entropy of the three classifiers, the auxiliary ones with weight 0.3 (section 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.CrossEntropyLoss()
        self.auxiliary1 = nn.CrossEntropyLoss()
        self.auxiliary2 = nn.CrossEntropyLoss()

    def forward(self, outputs: tuple[Tensor, Tensor, Tensor], target: Tensor) -> Tensor:
        logits, auxiliary1, auxiliary2 = outputs
        auxiliary = self.auxiliary1(auxiliary1, target) + self.auxiliary2(auxiliary2, target)
        return self.classifier(logits, target) + 0.3 * auxiliary


def _convolution(in_channels: int, out_channels: int, size: int, *, stride: int = 1, padding: int = 0) -> nn.Sequential:
    convolution = nn.Conv2d(in_channels, out_channels, size, stride=stride, padding=padding)
    return nn.Sequential(OrderedDict(conv=convolution, relu=nn.ReLU(inplace=True)))


def _auxiliary_classifier(in_channels: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            pool=nn.AvgPool2d(5, stride=3, ceil_mode=True),
            conv=_convolution(in_channels, 128, 1),
            flatten=nn.Flatten(),
            fc=nn.Linear(128 * 4 * 4, 1024),
            relu=nn.ReLU(inplace=True),
            drop=nn.Dropout(0.7),
            classifier=nn.Linear(1024, 1000),
        )
    )
