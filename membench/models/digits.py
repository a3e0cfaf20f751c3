"""A small network for scikit-learn's handwritten digits, which come with the package.

From no paper; for real training without a download. It has one of each layer that a memory-saving method may
get wrong: batch normalisation (running statistics), in-place ReLU, max pooling, dropout (random numbers).
"""

from collections import OrderedDict

from torch import nn


def digits_cnn() -> nn.Sequential:
    """Return the network, for one channel of 8x8 and 10 classes."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 16, 3, padding=1, bias=False),
            bn1=nn.BatchNorm2d(16),
            relu1=nn.ReLU(inplace=True),
            conv2=nn.Conv2d(16, 32, 3, padding=1, bias=False),
            bn2=nn.BatchNorm2d(32),
            relu2=nn.ReLU(inplace=True),
            pool2=nn.MaxPool2d(2),
            conv3=nn.Conv2d(32, 64, 3, padding=1, bias=False),
            bn3=nn.BatchNorm2d(64),
            relu3=nn.ReLU(inplace=True),
            pool3=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc4=nn.Linear(64 * 2 * 2, 64),
            relu4=nn.ReLU(inplace=True),
            drop4=nn.Dropout(0.25),
            fc5=nn.Linear(64, 10),
        )
    )
