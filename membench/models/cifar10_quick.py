"""CIFAR10-quick as BVLC Caffe defines it (``examples/cifar10/cifar10_quick_train_test.prototxt``).

After Krizhevsky's cuda-convnet layers. Not CIFAR10-full, which has local response normalisation and one
linear layer. Pooling rounds up, as Caffe's does: 32, 16, 8, 4 px. The first ReLU writes onto the pooling's output,
the others onto the convolution's; there is none between the two linear layers.
"""

from collections import OrderedDict

from torch import nn


def cifar10_quick() -> nn.Sequential:
    """Return the network, for three channels of 32x32 and 10 classes."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 32, 5, padding=2),
            pool1=nn.MaxPool2d(3, stride=2, ceil_mode=True),
            relu1=nn.ReLU(inplace=True),
            conv2=nn.Conv2d(32, 32, 5, padding=2),
            relu2=nn.ReLU(inplace=True),
            pool2=nn.AvgPool2d(3, stride=2, ceil_mode=True),
            conv3=nn.Conv2d(32, 64, 5, padding=2),
            relu3=nn.ReLU(inplace=True),
            pool3=nn.AvgPool2d(3, stride=2, ceil_mode=True),
            flatten=nn.Flatten(),
            ip1=nn.Linear(64 * 4 * 4, 64),
            ip2=nn.Linear(64, 10),
        )
    )
