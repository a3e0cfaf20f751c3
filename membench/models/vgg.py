"""VGG networks without batch normalisation, and the deeper ones of vDNN and moDNN.

Simonyan, Zisserman: "Very Deep Convolutional Networks for Large-Scale Image Recognition" (ICLR 2015): VGG-16
(Table 1, D, 13 convolutions) and VGG-19 (E, 16 convolutions). VGG-116 to VGG-516 are those of vDNN (Rhu et
al., arXiv 1602.08124v2, section 4.3): every 100 more add 20 convolutions to each of the five groups of E, as wide as
the group. vDNN's numbers count convolutions only (VGG-116 has 116 and three linear layers), and its "VGG-16"
has 16 of them: VGG-19 here.

VGG-101 is moDNN's (Section 7): VGG-19 with 82 more convolutions. Their places are not stated. Assumed: every group
grows in proportion, from 2, 2, 4, 4, 4 of 16 to 12, 12, 25, 25, 24 of 98.
"""

from collections.abc import Sequence

from torch import nn
from torchvision.models.vgg import VGG, make_layers

CONVOLUTIONS_PER_GROUP = {
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
    101: (12, 12, 25, 25, 24),
    116: (22, 22, 24, 24, 24),
    216: (42, 42, 44, 44, 44),
    316: (62, 62, 64, 64, 64),
    416: (82, 82, 84, 84, 84),
    516: (102, 102, 104, 104, 104),
}
CHANNELS_PER_GROUP = (64, 128, 256, 512, 512)


def vgg(depth: int) -> VGG:
    """Return VGG-``depth`` for 1,000 classes, with torchvision's layers and classifier.

    Raises:
        ValueError: the depth has no entry in `CONVOLUTIONS_PER_GROUP`.
    """
    if depth not in CONVOLUTIONS_PER_GROUP:
        raise ValueError(f"no VGG of depth {depth}; choose from {sorted(CONVOLUTIONS_PER_GROUP)}")
    return vgg_of_groups(CONVOLUTIONS_PER_GROUP[depth])


def vgg_of_groups(convolutions: Sequence[int]) -> VGG:
    """Return a VGG with these counts of convolutions in its five groups."""
    layers: list[str | int] = []
    for channels, count in zip(CHANNELS_PER_GROUP, convolutions, strict=True):
        layers += [channels] * count + ["M"]
    return VGG(make_layers(layers))


def vgg_without_average(depth: int) -> VGG:
    """Return VGG-``depth`` as Caffe deploys it, without torchvision's pooling, which at 224 px copies its input."""
    network = vgg(depth)
    network.avgpool = nn.Identity()
    return network
