"""VGG-S, the slow network of Chatfield and others, as Caffe's model zoo deploys it.

Chatfield, Simonyan, Vedaldi, Zisserman: "Return of the Devil in the Details" (BMVC 2014), CNN-S: 224 px, five
convolutions, local response normalisation behind the first, three linear layers. mmCNN infers with it. Not VGG-16 or
VGG-19 (`vgg.py`), which are deeper and have small kernels throughout.
"""

from collections import OrderedDict

from torch import nn


def vgg_s() -> nn.Sequential:
    """Return VGG-S for 1,000 classes; pooling rounds up, as Caffe's does."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 96, 7, stride=2),
            relu1=nn.ReLU(inplace=True),
            norm1=nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2.0),
            pool1=nn.MaxPool2d(3, stride=3, ceil_mode=True),
            conv2=nn.Conv2d(96, 256, 5),
            relu2=nn.ReLU(inplace=True),
            pool2=nn.MaxPool2d(2, stride=2, ceil_mode=True),
            conv3=nn.Conv2d(256, 512, 3, padding=1),
            relu3=nn.ReLU(inplace=True),
            conv4=nn.Conv2d(512, 512, 3, padding=1),
            relu4=nn.ReLU(inplace=True),
            conv5=nn.Conv2d(512, 512, 3, padding=1),
            relu5=nn.ReLU(inplace=True),
            pool5=nn.MaxPool2d(3, stride=3, ceil_mode=True),
            flatten=nn.Flatten(),
            fc6=nn.Linear(512 * 6 * 6, 4096),
            relu6=nn.ReLU(inplace=True),
            drop6=nn.Dropout(0.5),
            fc7=nn.Linear(4096, 4096),
            relu7=nn.ReLU(inplace=True),
            drop7=nn.Dropout(0.5),
            fc8=nn.Linear(4096, 1000),
        )
    )
