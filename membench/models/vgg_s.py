"""VGG-S, the slow network of Chatfield and others, as Caffe's model zoo deploys it.

Chatfield, Simonyan, Vedaldi, Zisserman: "Return of the Devil in the Details" (BMVC 2014), CNN-S: 224 px, five
convolutions, local response normalisation behind the first, three linear layers. mmCNN infers with it. Not VGG-16 or
VGG-19 (`vgg.py`), which are deeper and have small kernels throughout.
"""

from collections import OrderedDict

from torch import nn

from membench.models.alexnet import classifier, convolution


def vgg_s() -> nn.Sequential:
    """Return VGG-S for 1,000 classes; pooling rounds up, as Caffe's does."""
    return nn.Sequential(
        OrderedDict(
            **convolution(1, 3, 96, 7, stride=2),
            norm1=nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2.0),
            pool1=nn.MaxPool2d(3, stride=3, ceil_mode=True),
            **convolution(2, 96, 256, 5),
            pool2=nn.MaxPool2d(2, stride=2, ceil_mode=True),
            **convolution(3, 256, 512, 3, padding=1),
            **convolution(4, 512, 512, 3, padding=1),
            **convolution(5, 512, 512, 3, padding=1),
            pool5=nn.MaxPool2d(3, stride=3, ceil_mode=True),
            **classifier(512 * 6 * 6, 4096, 1000),
        )
    )
