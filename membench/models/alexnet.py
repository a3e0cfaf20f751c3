"""AlexNet and CaffeNet as BVLC Caffe defines them (``bvlc_alexnet`` and ``bvlc_reference_caffenet``).

Krizhevsky, Sutskever, Hinton: "ImageNet Classification with Deep Convolutional Neural Networks" (NIPS 2012):
227 px, two groups in the second, fourth and fifth convolution, local response normalisation. Not
the narrower network of Krizhevsky's "One weird trick" (2014), without normalisation, which vDNN uses
(`convnet_benchmarks.py`) and torchvision calls ``alexnet``.

Caffe's dropout is in place as well; here it cannot be, because autograd needs the ReLU's output that it would
overwrite.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch import nn

Layers = dict[str, nn.Module]


def alexnet(classes: int = 1000) -> nn.Sequential:
    """Return AlexNet: normalisation before pooling."""
    return _network(lambda number: norm(number) | pool(number), classes)


def caffenet() -> nn.Sequential:
    """Return CaffeNet: pooling before normalisation, which leaves less to normalise; otherwise AlexNet."""
    return _network(lambda number: pool(number) | norm(number), classes=1000)


def _network(norm_and_pool: Callable[[int], Layers], classes: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            **convolution(1, 3, 96, 11, stride=4),
            **norm_and_pool(1),
            **convolution(2, 96, 256, 5, padding=2, groups=2),
            **norm_and_pool(2),
            **convolution(3, 256, 384, 3, padding=1),
            **convolution(4, 384, 384, 3, padding=1, groups=2),
            **convolution(5, 384, 256, 3, padding=1, groups=2),
            **pool(5),
            **classifier(256 * 6 * 6, 4096, classes),
        )
    )


def convolution(number: int, in_channels: int, out_channels: int, size: int, **options: Any) -> Layers:
    """Return a square convolution and its ReLU, named ``conv<number>`` and ``relu<number>``."""
    layer = nn.Conv2d(in_channels, out_channels, size, **options)
    return {f"conv{number}": layer, f"relu{number}": nn.ReLU(inplace=True)}


def classifier(features: int, hidden: int, classes: int) -> Layers:
    """Return AlexNet's three linear layers with dropout, ``fc6`` to ``fc8``."""
    return {
        "flatten": nn.Flatten(),
        "fc6": nn.Linear(features, hidden),
        "relu6": nn.ReLU(inplace=True),
        "drop6": nn.Dropout(0.5),
        "fc7": nn.Linear(hidden, hidden),
        "relu7": nn.ReLU(inplace=True),
        "drop7": nn.Dropout(0.5),
        "fc8": nn.Linear(hidden, classes),
    }


def norm(number: int) -> Layers:
    """Return AlexNet's local response normalisation, named ``norm<number>``."""
    return {f"norm{number}": nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75)}


def pool(number: int) -> Layers:
    """Return AlexNet's overlapping max pooling, named ``pool<number>``; it rounds up, as Caffe's does."""
    return {f"pool{number}": nn.MaxPool2d(3, stride=2, ceil_mode=True)}
