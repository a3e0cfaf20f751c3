"""LeNet for MNIST as BVLC Caffe defines it (``examples/mnist``).

After LeCun et al.: "Gradient-Based Learning Applied to Document Recognition" (1998), section II-B. Not
LeNet-5: two wider convolutions, max pooling, and one ReLU, after the first linear layer, in place.
"""

from collections import OrderedDict

from torch import nn


def lenet() -> nn.Sequential:
    """Return the network, for one channel of 28x28 and 10 classes."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 20, 5),
            pool1=nn.MaxPool2d(2, stride=2, ceil_mode=True),
            conv2=nn.Conv2d(20, 50, 5),
            pool2=nn.MaxPool2d(2, stride=2, ceil_mode=True),
            flatten=nn.Flatten(),
            ip1=nn.Linear(50 * 4 * 4, 500),
            relu1=nn.ReLU(inplace=True),
            ip2=nn.Linear(500, 10),
        )
    )
