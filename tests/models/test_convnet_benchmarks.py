import torch
from torch import nn
from torchvision.models import alexnet as torchvisions_alexnet

from membench.models.convnet_benchmarks import alexnet, overfeat


def _sizes(model: nn.Sequential, pixels: int) -> list[tuple[int, ...]]:
    """Return the output shapes of convolutions, poolings and linear layers."""
    sizes = []
    x = torch.empty(2, 3, pixels, pixels, device="meta")
    for layer in model:
        x = layer(x)
        if not isinstance(layer, nn.ReLU | nn.Flatten):
            sizes.append(tuple(x.shape[1:]))
    return sizes


def test_alexnet_has_the_parameters_of_torchvision() -> None:
    with torch.device("meta"):
        model, reference = alexnet(), torchvisions_alexnet()
    assert [p.shape for p in model.parameters()] == [p.shape for p in reference.parameters()]


def test_feature_maps_of_alexnet() -> None:
    with torch.device("meta"):
        sizes = _sizes(alexnet(), 224)
    assert sizes[:4] == [(64, 55, 55), (64, 27, 27), (192, 27, 27), (192, 13, 13)]
    assert sizes[4:8] == [(384, 13, 13), (256, 13, 13), (256, 13, 13), (256, 6, 6)]
    assert sizes[8:] == [(4096,), (4096,), (1000,)]


def test_feature_maps_and_parameters_of_overfeat() -> None:
    """Table 1 of Sermanet et al., whose text gives 145 million parameters."""
    with torch.device("meta"):
        model = overfeat()
    sizes = _sizes(model, 231)
    assert sizes[:4] == [(96, 56, 56), (96, 28, 28), (256, 24, 24), (256, 12, 12)]
    assert sizes[4:8] == [(512, 12, 12), (1024, 12, 12), (1024, 12, 12), (1024, 6, 6)]
    assert sizes[8:] == [(3072,), (4096,), (1000,)]
    assert sum(parameter.numel() for parameter in model.parameters()) == 145_920_872
