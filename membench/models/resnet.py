"""Residual networks with post-activation blocks.

He, Zhang, Ren, Sun: "Deep Residual Learning for Image Recognition" (CVPR 2016): Table 1 for ImageNet,
section 4.2 for CIFAR-10. The deep bottleneck networks, 302 to 1517 layers, are Layrub's (Table 6). Not the
pre-activation networks of He et al.'s "Identity Mappings", nor wide ones (`wide_resnet.py`).
"""

from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

# 18 to 152: He et al., Table 1. 1001 to 1517: counted in the network definitions that Layrub's authors
# published. 302 and 695 are not among those: same share of the second and third stage as 1001.
BLOCKS_PER_STAGE = {
    18: [2, 2, 2, 2],
    34: [3, 4, 6, 3],
    50: [3, 4, 6, 3],
    101: [3, 4, 23, 3],
    152: [3, 8, 36, 3],
    302: [3, 17, 77, 3],
    695: [3, 39, 186, 3],
    1001: [3, 57, 270, 3],
    1172: [3, 64, 320, 3],
    1304: [3, 71, 357, 3],
    1517: [3, 83, 416, 3],
}


def blocks_per_stage(depth: int) -> list[int]:
    """Return the blocks of each stage of the ImageNet network with that many weight layers.

    Raises:
        ValueError: the depth has no entry in `BLOCKS_PER_STAGE`, and is not 3n+2 beyond the deepest of them. Those have
            the share of the second and third stage of 1001.
    """
    if depth in BLOCKS_PER_STAGE:
        return BLOCKS_PER_STAGE[depth]
    blocks, remainder = divmod(depth - 2, 3)
    if depth < max(BLOCKS_PER_STAGE) or remainder:
        raise ValueError(
            f"no ImageNet ResNet of depth {depth}; choose from {sorted(BLOCKS_PER_STAGE)}, or 3n+2 beyond them"
        )
    first, second, third, fourth = BLOCKS_PER_STAGE[1001]
    middle = blocks - first - fourth
    second = round(middle * second / (second + third))
    return [first, second, middle - second, fourth]


class ShortcutFirstBasicBlock(BasicBlock):  # type: ignore[misc]  # torchvision is untyped
    """Torchvision's block with the shortcut's projection before its convolutions, as in He et al.'s definitions."""

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += shortcut
        return self.relu(out)


class ShortcutFirstBottleneck(Bottleneck):  # type: ignore[misc]  # torchvision is untyped
    """Torchvision's block with the shortcut's projection before its convolutions, as in He et al.'s definitions."""

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += shortcut
        return self.relu(out)


def imagenet_resnet(depth: int, *, projects_first_shortcut: bool = False, shortcut_first: bool = False) -> ResNet:
    """Return the ImageNet network with ``depth`` weight layers, projections of the shortcuts not counted.

    A bottleneck halves height and width in its first 1x1 convolution, as in He et al.'s and Layrub's definitions
    (torchvision's networks do so in the 3x3 convolution, whose input is then four times as large).

    Args:
        projects_first_shortcut: the first block has a 1x1 convolution in its shortcut although channels agree,
            as in Layrub's definition of ResNet-34. Every bottleneck network has one there anyway.
        shortcut_first: a block computes its shortcut's projection before its convolutions, as in He et al.'s and
            Layrub's definitions (torchvision's after them). The results are equal; what is in memory at a time is not.

    Raises:
        ValueError: there is no network of this depth, see `blocks_per_stage`.
    """
    basic, bottleneck = (
        (ShortcutFirstBasicBlock, ShortcutFirstBottleneck) if shortcut_first else (BasicBlock, Bottleneck)
    )
    model = ResNet(basic if depth < 50 else bottleneck, blocks_per_stage(depth))
    for block in model.modules():
        if isinstance(block, Bottleneck):
            block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    first = model.layer1[0]
    if projects_first_shortcut and first.downsample is None:
        first.downsample = nn.Sequential(nn.Conv2d(64, 64, 1, bias=False), nn.BatchNorm2d(64))
    return model


class CifarBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut.

    Where height and width are halved and channels doubled, the shortcut takes every second pixel and adds channels
    of zeros: option A, which the paper uses in all its CIFAR-10 networks (section 4.2). Option B, a 1x1
    convolution with batch norm, adds weight layers that the depth does not count.

    Args:
        projects: the shortcut is a 1x1 convolution with batch norm, also where channels agree.
    """

    def __init__(self, *, in_channels: int, out_channels: int, projects: bool = False) -> None:
        super().__init__()
        stride = out_channels // in_channels
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Sequential()
        if projects:
            self.shortcut.append(nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(out_channels))
        elif stride == 2:
            self.shortcut.append(nn.AvgPool2d(kernel_size=1, stride=2))
            self.shortcut.append(nn.ZeroPad3d((0, 0, 0, 0, in_channels // 2, in_channels // 2)))
        self.relu2 = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu2(out)


class ProjectedCifarBlock(CifarBlock):
    """The block with its projection before its convolutions, as in Layrub's definition."""

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.shortcut(x)
        out = self.relu1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += shortcut
        return self.relu2(out)


def cifar_resnet(depth: int, *, projects_shortcuts: bool = False) -> nn.Sequential:
    """Return the CIFAR-10 network of 6n+2 weight layers: n blocks each of 16, 32 and 64 channels.

    Args:
        projects_shortcuts: the first block of each stage has a 1x1 convolution with batch norm in its shortcut, as in
            the definition of ResNet-56 that Layrub's authors published.

    Raises:
        ValueError: the depth is not 6n+2.
    """
    blocks, remainder = divmod(depth - 2, 6)
    if blocks < 1 or remainder:
        raise ValueError(f"a CIFAR ResNet has 6n+2 layers (20, 32, 44, 56, 110 ...), not {depth}")
    model = nn.Sequential()
    model.add_module("conv1", nn.Conv2d(3, 16, 3, padding=1, bias=False))
    model.add_module("bn1", nn.BatchNorm2d(16))
    model.add_module("relu1", nn.ReLU(inplace=True))
    in_channels = 16
    for stage, out_channels in enumerate((16, 32, 64), start=1):
        layer = nn.Sequential()
        for number in range(blocks):
            projects = projects_shortcuts and not number
            block = ProjectedCifarBlock if projects else CifarBlock
            layer.append(block(in_channels=in_channels, out_channels=out_channels, projects=projects))
            in_channels = out_channels
        model.add_module(f"layer{stage}", layer)
    model.add_module("avgpool", nn.AdaptiveAvgPool2d(1))
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc", nn.Linear(64, 10))
    return model
