"""FCN-8s: a fully convolutional network that labels every pixel.

Long, Shelhamer, Darrell: "Fully Convolutional Networks for Semantic Segmentation" (CVPR 2015), Sections 3 and 4: VGG-16
with its classifier as convolutions, and the scores of pool3 and pool4 added on the way up.

For moDNN, which names the paper without details. Assumed: FCN-8s, the last and finest of its three; 21 classes of
PASCAL VOC, as there; 224 pixels, as moDNN's other networks have them; and fc6 padded by 3. The authors instead pad the
image by 100 on each side and crop: at moDNN's batch of 128, activations of 422 pixels would far exceed 24 GB, in which
FCN fits according to its text. A choice made knowing that (``experiments/modnn/choices.yaml``).
"""

import torch
from torch import Tensor, nn

from membench.models.vgg import vgg

_POOL3, _POOL4 = 17, 24
"""Layers of VGG-16's feature extraction up to there."""


class FCN8s(nn.Module):
    """The network; returns scores (images, classes, height, width) of images whose sides are multiples of 32.

    Its deconvolutions interpolate bilinearly at first, and are trained (Section 4.2).
    """

    def __init__(self, *, classes: int) -> None:
        super().__init__()
        features = vgg(16).features
        self.to_pool3, self.to_pool4 = features[:_POOL3], features[_POOL3:_POOL4]
        self.to_pool5 = features[_POOL4:]
        self.classifier = nn.Sequential(
            nn.Conv2d(512, 4096, 7, padding=3),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Conv2d(4096, 4096, 1),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Conv2d(4096, classes, 1),
        )
        self.score_pool3, self.score_pool4 = nn.Conv2d(256, classes, 1), nn.Conv2d(512, classes, 1)
        self.up_pool5, self.up_pool4 = (_upsampling(classes, factor=2) for _ in range(2))
        self.up_pool3 = _upsampling(classes, factor=8)

    def forward(self, images: Tensor) -> Tensor:
        pool3 = self.to_pool3(images)
        pool4 = self.to_pool4(pool3)
        scores = self.up_pool5(self.classifier(self.to_pool5(pool4)))
        scores = self.up_pool4(scores + self.score_pool4(pool4))
        scores = scores + self.score_pool3(pool3)
        return self.up_pool3(scores)


def _upsampling(classes: int, *, factor: int) -> nn.ConvTranspose2d:
    """Return a deconvolution that enlarges each class's scores by an even factor, bilinearly at first."""
    layer = nn.ConvTranspose2d(classes, classes, 2 * factor, stride=factor, padding=factor // 2, bias=False)
    distance = (torch.arange(2 * factor) - (factor - 0.5)).abs() / factor
    with torch.no_grad():
        layer.weight.zero_()
        for channel in range(classes):
            layer.weight[channel, channel] = torch.outer(1 - distance, 1 - distance)
    return layer
