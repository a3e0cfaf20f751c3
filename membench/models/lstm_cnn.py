"""A convolutional network per frame and an LSTM over the frames of a video.

Donahue et al.: "Long-term Recurrent Convolutional Networks for Visual Recognition and Description" (CVPR 2015),
section 4, activity recognition on UCF101. Sizes as in the Caffe definition that its authors published
(``LRCN_activity_recognition/train_test_lstm_RGB``): a hybrid of CaffeNet and Zeiler and Fergus's network up to fc6,
then 256 LSTM units, trained on 24 videos of 16 frames, which is Layrub's LSTM-CNN of batch 384 (Figure 11).
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from membench.models.alexnet import convolution, norm, pool
from membench.models.lstm import LSTM


class LSTMCNN(nn.Module):
    """Features of each frame, an LSTM layer over the frames, and a classifier of every frame.

    Args:
        features: turns images into vectors of `feature_size`.
        frames: number of a video's frames; a batch holds the first frames of all videos, then the second ones ...
    """

    def __init__(self, features: nn.Module, *, feature_size: int, hidden_size: int, frames: int, classes: int) -> None:
        super().__init__()
        self.frames = frames
        self.features = features
        self.lstm = LSTM(feature_size, hidden_size)
        self.drop = nn.Dropout(0.5)
        self.classifier = nn.Linear(hidden_size, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, a row for each image."""
        steps = self.features(images).chunk(self.frames)
        return self.classifier(self.drop(torch.cat(self.lstm(steps))))


def lrcn(*, frames: int) -> LSTMCNN:
    """Return LRCN-fc6 for images of 227x227 and the 101 classes of UCF101."""
    features = nn.Sequential(
        OrderedDict(
            **convolution(1, 3, 96, 7, stride=2),
            **pool(1),
            **norm(1),
            **convolution(2, 96, 384, 5, stride=2, groups=2),
            **pool(2),
            **norm(2),
            **convolution(3, 384, 512, 3, padding=1),
            **convolution(4, 512, 512, 3, padding=1, groups=2),
            **convolution(5, 512, 384, 3, padding=1, groups=2),
            **pool(5),
            flatten=nn.Flatten(),
            fc6=nn.Linear(384 * 6 * 6, 4096),
            relu6=nn.ReLU(inplace=True),
            drop6=nn.Dropout(0.9),
        )
    )
    return LSTMCNN(features, feature_size=4096, hidden_size=256, frames=frames, classes=101)
