"""The CIFAR ResNets with pre-activation bottlenecks, ResNet-1001 among them.

He, Zhang, Ren, Sun: "Identity Mappings in Deep Residual Networks" (ECCV 2016), section 5 and the authors' published
code (KaimingHe/resnet-1k-layers). Not `resnet`, whose networks activate behind the sum.
"""

from torch import Tensor, nn


class PreactivationBottleneck(nn.Module):
    """Batch norm and ReLU before each convolution: 1x1, 3x3, 1x1 with four times the channels, and the sum.

    Where the channels change, the shortcut is a 1x1 convolution of the activated input.
    """

    def __init__(self, *, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        out_channels = 4 * channels
        self.bn1, self.relu1 = nn.BatchNorm2d(in_channels), nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False)
        self.bn2, self.relu2 = nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn3, self.relu3 = nn.BatchNorm2d(channels), nn.ReLU(inplace=True)
        self.conv3 = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.projection: nn.Module | None = None
        if in_channels != out_channels:
            self.projection = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.relu1(self.bn1(x))
        out = self.relu2(self.bn2(self.conv1(activated)))
        out = self.conv3(self.relu3(self.bn3(self.conv2(out))))
        out += x if self.projection is None else self.projection(activated)
        return out


def preactivation_resnet(depth: int) -> nn.Sequential:
    """Return the CIFAR-10 network of 9n+2 weight layers: n bottlenecks each of 64, 128 and 256 channels.

    Raises:
        ValueError: the depth is not 9n+2.
    """
    blocks, remainder = divmod(depth - 2, 9)
    if blocks < 1 or remainder:
        raise ValueError(f"a pre-activation ResNet has 9n+2 layers (29, 164, 1001 ...), not {depth}")
    model = nn.Sequential()
    model.add_module("conv1", nn.Conv2d(3, 16, 3, padding=1, bias=False))
    in_channels = 16
    for stage, channels in enumerate((16, 32, 64), start=1):
        layer = nn.Sequential()
        for number in range(blocks):
            stride = 2 if stage > 1 and not number else 1
            layer.append(PreactivationBottleneck(in_channels=in_channels, channels=channels, stride=stride))
            in_channels = 4 * channels
        model.add_module(f"stage{stage}", layer)
    model.add_module("bn", nn.BatchNorm2d(in_channels))
    model.add_module("relu", nn.ReLU(inplace=True))
    model.add_module("avgpool", nn.AdaptiveAvgPool2d(1))
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc", nn.Linear(in_channels, 10))
    return model
