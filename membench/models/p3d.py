"""Pseudo-3D residual networks: 3x3x3 convolutions of video as 1x3x3 ones in space and 3x1x1 ones in time.

Qiu, Yao, Mei: "Learning Spatio-Temporal Representation with Pseudo-3D Residual Networks" (ICCV 2017), sections 3.1 to
3.3; sizes and poolings as in the definition that its authors published (ZhaofanQiu/pseudo-3d-residual-networks,
``deploy_p3d_resnet_sports1m.prototxt``).
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torchvision.models.resnet import conv1x1

from membench.models.resnet import BLOCKS_PER_STAGE, ShortcutFirstBottleneck

BLOCK_KINDS = "ABC"
"""The blocks of the first three stages take turns."""
EXPANSION = 4
"""A block has four times the channels of its inner convolutions."""


class P3DBlock(nn.Module):
    """A bottleneck whose inner convolution is split into space S and time T (P3D, Figure 3).

    Kind A computes T(S(x)), B S(x) + T(x), C S(x) + T(S(x)). The published definition halves both terms of C, which
    the batch norm behind the next convolution undoes; here they are summed up, as in the paper.

    Inputs and outputs have shape (batch, channels, frames, height, width).
    """

    def __init__(self, kind: str, *, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        out_channels = EXPANSION * channels
        self.kind = kind
        self.projection: nn.Module | None = None
        if stride > 1 or in_channels != out_channels:
            self.projection = _convolution(in_channels, out_channels, 1, stride=stride)
        self.reduce = _convolution(in_channels, channels, 1, stride=stride).append(nn.ReLU(inplace=True))
        self.space = _convolution(channels, channels, (1, 3, 3)).append(nn.ReLU(inplace=True))
        self.time = _convolution(channels, channels, (3, 1, 1))
        self.inner_relu = nn.ReLU(inplace=True)
        self.expand = _convolution(channels, out_channels, 1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.projection is None else self.projection(x)
        reduced = self.reduce(x)
        in_space = self.space(reduced)
        in_time = self.time(reduced if self.kind == "B" else in_space)
        out = self.expand(self.inner_relu(in_time if self.kind == "A" else in_space + in_time))
        out += shortcut
        return self.relu(out)


def p3d_resnet(
    *, classes: int, blocks: Sequence[int] = tuple(BLOCKS_PER_STAGE[152]), channels: int = 64
) -> nn.Sequential:
    """Return the network for clips of shape (3, 16, height, width); by default the one of 199 layers.

    A pooling behind the stem, and behind each of the first three stages, halves the number of frames, so that one is
    left for the fourth stage, whose bottlenecks are two-dimensional. From the second stage on a stage's first block
    halves height and width.

    Args:
        blocks: by stage; four.
        channels: number of channels of the stem, and of the first stage's inner convolutions.
    """
    model = nn.Sequential()
    model.add_module("conv1", _convolution(3, channels, (1, 7, 7), stride=2).append(nn.ReLU(inplace=True)))
    model.add_module("pool1", nn.MaxPool3d((2, 3, 3), stride=2, ceil_mode=True))
    in_channels, number = channels, 0
    for stage, count in enumerate(blocks[:3]):
        inner = channels * 2**stage
        layer = nn.Sequential()
        for place in range(count):
            stride = 2 if stage and not place else 1
            kind = BLOCK_KINDS[number % len(BLOCK_KINDS)]
            layer.append(P3DBlock(kind, in_channels=in_channels, channels=inner, stride=stride))
            in_channels, number = EXPANSION * inner, number + 1
        model.add_module(f"layer{stage + 1}", layer)
        model.add_module(f"frames{stage + 1}", nn.MaxPool3d((2, 1, 1)))
    model.add_module("frame", nn.Flatten(1, 2))
    model.add_module("layer4", _stage_of_images(in_channels, 8 * channels, blocks[3]))
    model.add_module("avgpool", nn.AdaptiveAvgPool2d(1))
    model.add_module("flatten", nn.Flatten())
    model.add_module("dropout", nn.Dropout(0.1))
    model.add_module("fc", nn.Linear(EXPANSION * 8 * channels, classes))
    return model


def _stage_of_images(in_channels: int, channels: int, count: int) -> nn.Sequential:
    """Return ResNet's bottlenecks; the first one halves height and width in its first convolution."""
    out_channels = EXPANSION * channels
    projection = nn.Sequential(conv1x1(in_channels, out_channels, 2), nn.BatchNorm2d(out_channels))
    first = ShortcutFirstBottleneck(in_channels, channels, downsample=projection)
    first.conv1.stride = (2, 2)
    return nn.Sequential(first, *(ShortcutFirstBottleneck(out_channels, channels) for _ in range(count - 1)))


def _convolution(
    in_channels: int, out_channels: int, size: int | tuple[int, int, int], *, stride: int = 1
) -> nn.Sequential:
    """Return a convolution that keeps the frames, and its batch norm."""
    frames, height, width = (size,) * 3 if isinstance(size, int) else size
    convolution = nn.Conv3d(
        in_channels,
        out_channels,
        (frames, height, width),
        stride=(1, stride, stride),
        padding=(frames // 2, height // 2, width // 2),
        bias=False,
    )
    return nn.Sequential(convolution, nn.BatchNorm3d(out_channels))
