"""Small networks for scikit-learn's handwritten digits, which need no download.

Not from a paper. `digits_cnn` has one of each layer that a memory-saving method may get wrong: batch normalisation
(running statistics), in-place ReLU, max pooling, dropout (random numbers). `digits_alexnet` has AlexNet's sequence of
layers.
"""

from collections import OrderedDict

from torch import nn

from membench.models.alexnet import classifier, convolution


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


def digits_alexnet(
    image_shape: tuple[int, int, int] = (1, 8, 8), classes: int = 10, hidden: int = 128
) -> nn.Sequential:
    """Return AlexNet's five convolutions and three linear layers, narrow, for 10 classes of 8x8 or other images.

    Two pools, not three, because the images are so small; no normalisation. Weights are initialised as in He et al.
    (2015): with PyTorch's smaller ones eight layers without batch normalisation take tens of epochs to begin to learn.

    Args:
        image_shape: channels, rows and columns.
        hidden: outputs of the first two linear layers.
    """
    channels, rows, columns = image_shape
    network = nn.Sequential(
        OrderedDict(
            **convolution(1, channels, 16, 3, padding=1),
            pool1=nn.MaxPool2d(2),
            **convolution(2, 16, 32, 3, padding=1),
            pool2=nn.MaxPool2d(2),
            **convolution(3, 32, 48, 3, padding=1),
            **convolution(4, 48, 48, 3, padding=1),
            **convolution(5, 48, 32, 3, padding=1),
            **classifier(32 * (rows // 4) * (columns // 4), hidden, classes),
        )
    )
    for layer in network:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    return network
