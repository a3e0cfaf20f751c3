"""VGG-S against its description (Chatfield and others, Table 1) and the size of the deployed model."""

import torch

from membench.capture.capture import capture
from membench.core.step.workload import Workload
from membench.models.vgg import vgg_without_average
from membench.models.vgg_s import vgg_s
from membench.strategies.mmcnn.strategy import layers_of


def test_activations_and_weights() -> None:
    with torch.device("meta"):
        network = vgg_s().eval()
        images = torch.empty(1, 3, 224, 224)
        sizes = {}
        for name, layer in network.named_children():
            images = layer(images)
            sizes[name] = tuple(images.shape[1:])
    assert sizes["conv1"] == (96, 109, 109)
    assert sizes["pool1"] == (96, 37, 37)
    assert sizes["conv2"] == (256, 33, 33)
    assert sizes["pool2"] == (256, 17, 17)
    assert sizes["pool5"] == (512, 6, 6)
    assert sizes["fc8"] == (1000,)
    assert network.fc6.weight.nbytes == 288 * 2**20


def test_mmcnn_counts_twenty_layers_and_43_of_vgg19() -> None:
    for build, layers in ((vgg_s, 20), (lambda: vgg_without_average(19), 43)):
        with torch.device("meta"):
            work = Workload("network", build().eval(), None, (torch.empty(1, 3, 224, 224),))
        assert len(layers_of(capture(work).graph)) == layers
