import torch

from membench.models.lenet import lenet


def test_parameters_are_those_of_caffe() -> None:
    assert sum(parameter.numel() for parameter in lenet().parameters()) == 431_080


def test_feature_maps_have_the_sizes_of_caffe() -> None:
    model = lenet()
    x = torch.randn(2, 1, 28, 28)
    assert model[:2](x).shape == (2, 20, 12, 12)
    assert model[:4](x).shape == (2, 50, 4, 4)
    assert model(x).shape == (2, 10)
