"""Networks of the blind test that conf/model does not have."""

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet

from membench.models import timm_networks
from membench.models.alexnet import classifier, convolution, norm, pool


def one_tower_alexnet() -> nn.Sequential:
    """Return AlexNet without groups, normalisation before pooling: the 23 layers of SuperNeurons' footnote 3."""
    return nn.Sequential(
        OrderedDict(
            **convolution(1, 3, 96, 11, stride=4),
            **norm(1),
            **pool(1),
            **convolution(2, 96, 256, 5, padding=2),
            **norm(2),
            **pool(2),
            **convolution(3, 256, 384, 3, padding=1),
            **convolution(4, 384, 384, 3, padding=1),
            **convolution(5, 384, 256, 3, padding=1),
            **pool(5),
            **classifier(256 * 6 * 6, 4096, 1000),
        )
    )


def bottleneck_resnet(blocks: Sequence[int]) -> ResNet:
    """Return an ImageNet ResNet with these bottlenecks in its four stages, the stride in the first 1x1 convolution."""
    model = ResNet(Bottleneck, list(blocks))
    for block in model.modules():
        if isinstance(block, Bottleneck):
            block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    return model


def inception_v4() -> nn.Module:
    """Return timm's Inception-v4 with batch norm and ReLU as separate modules, dropout of 0.2 before the classifier.

    timm's joint module also counts batches, which the lowerings of frameworks do not read.
    """
    from timm.layers import BatchNormAct2d

    network = timm_networks.network("inception_v4", num_classes=1000, drop_rate=0.2)
    for parent in list(network.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, BatchNormAct2d):
                plain = nn.BatchNorm2d(module.num_features, eps=module.eps)
                setattr(parent, name, nn.Sequential(plain, nn.ReLU(inplace=True)))
    return network
