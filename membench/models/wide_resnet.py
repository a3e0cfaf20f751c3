"""Wide residual networks WRN-d-k: pre-activation, k times the channels of a CIFAR ResNet.

Zagoruyko, Komodakis: "Wide Residual Networks" (BMVC 2016), Table 1 and section 2, without dropout. Not
torchvision's ``wide_resnet50_2``, which is the ImageNet bottleneck network with wider 3x3 convolutions.
"""

from torch import Tensor, nn


class WideBlock(nn.Module):
    """BN, ReLU, 3x3 convolution, twice, and a final sum (block type B(3,3)).

    Where the channels change, the shortcut is a 1x1 convolution of the activated input, as in the authors'
    code; elsewhere it is the input itself.
    """

    def __init__(self, *, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.projection: nn.Module | None = None
        if in_channels != out_channels:
            self.projection = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.relu1(self.bn1(x))
        out = self.conv2(self.relu2(self.bn2(self.conv1(activated))))
        out += x if self.projection is None else self.projection(activated)
        return out


class PostActivationBlock(nn.Module):
    """Convolution, BN, ReLU, convolution, sum, and BN and ReLU on the sum, as Layrub's authors define it.

    The shortcut is the block's input, or a 1x1 convolution of it where the channels change.
    """

    def __init__(self, *, in_channels: int, out_channels: int, stride: int, normalizes_sum: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.projection: nn.Module | None = None
        if in_channels != out_channels:
            self.projection = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)
        self.after = nn.Sequential()
        if normalizes_sum:
            self.after.append(nn.BatchNorm2d(out_channels))
            self.after.append(nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(self.relu1(self.bn1(self.conv1(x))))
        out += x if self.projection is None else self.projection(x)
        return self.after(out)


def layrub_wide_resnet(*, depth: int, widening_factor: int) -> nn.Sequential:
    """Return WRN-``depth``-``widening_factor`` as Layrub's authors define it (CGCL-codes/Layrub, ``models/wrn``).

    BN and ReLU follow the first convolution and every sum but the last one of each group, and the shortcut
    starts behind them; so they can write onto their input, which pre-activation does not allow.

    Raises:
        ValueError: the depth is not 6n+4.
    """
    blocks, remainder = divmod(depth - 4, 6)
    if blocks < 1 or remainder:
        raise ValueError(f"a wide ResNet has 6n+4 layers (10, 16, 22, 28, 40 ...), not {depth}")
    model = nn.Sequential()
    model.add_module("conv1", nn.Conv2d(3, 16, 3, padding=1))
    model.add_module("bn1", nn.BatchNorm2d(16))
    model.add_module("relu1", nn.ReLU(inplace=True))
    in_channels = 16
    for group, first_stride in enumerate((1, 2, 2), start=1):
        out_channels = 8 * 2**group * widening_factor
        layer = nn.Sequential()
        for number in range(blocks):
            stride = 1 if number else first_stride
            block = PostActivationBlock(
                in_channels=in_channels, out_channels=out_channels, stride=stride, normalizes_sum=number < blocks - 1
            )
            layer.append(block)
            in_channels = out_channels
        model.add_module(f"group{group}", layer)
    model.add_module("avgpool", nn.AdaptiveAvgPool2d(1))
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc", nn.Linear(in_channels, 10))
    return model


def wide_resnet(*, depth: int, widening_factor: int) -> nn.Sequential:
    """Return WRN-``depth``-``widening_factor`` for CIFAR-10: groups of 16k, 32k and 64k channels.

    The paper's depth is 6n+4 with n blocks per group: the first convolution, 6n in blocks, three projections.
    Layrub (section 5.2.2) also names WRN-8-k, which that rule does not give; it is read as one block per
    group, counted as the first convolution, six in blocks and the classifier. So it is the network that the
    rule calls WRN-10-k.

    Raises:
        ValueError: the depth is neither 6n+4 nor 8.
    """
    blocks, remainder = (1, 0) if depth == 8 else divmod(depth - 4, 6)
    if blocks < 1 or remainder:
        raise ValueError(f"a wide ResNet has 6n+4 layers (10, 16, 22, 28, 40 ...), or 8, not {depth}")
    model = nn.Sequential()
    model.add_module("conv1", nn.Conv2d(3, 16, 3, padding=1, bias=False))
    in_channels = 16
    for group, stride in enumerate((1, 2, 2), start=1):
        out_channels = 8 * 2**group * widening_factor
        layer = nn.Sequential()
        for own_stride in (stride, *[1] * (blocks - 1)):
            layer.append(WideBlock(in_channels=in_channels, out_channels=out_channels, stride=own_stride))
            in_channels = out_channels
        model.add_module(f"group{group}", layer)
    model.add_module("bn", nn.BatchNorm2d(in_channels))
    model.add_module("relu", nn.ReLU(inplace=True))
    model.add_module("avgpool", nn.AdaptiveAvgPool2d(1))
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc", nn.Linear(in_channels, 10))
    return model
