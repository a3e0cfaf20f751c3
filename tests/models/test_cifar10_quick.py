import torch

from membench.models.cifar10_quick import cifar10_quick


def test_parameters_are_those_of_caffe() -> None:
    assert sum(parameter.numel() for parameter in cifar10_quick().parameters()) == 145_578


def test_pooling_rounds_up_as_in_caffe() -> None:
    x = torch.randn(2, 3, 32, 32)
    sizes = {}
    for name, layer in cifar10_quick().named_children():
        x = layer(x)
        sizes[name] = tuple(x.shape[1:])
    assert sizes["pool1"] == (32, 16, 16)
    assert sizes["pool2"] == (32, 8, 8)
    assert sizes["pool3"] == (64, 4, 4)
    assert sizes["ip2"] == (10,)


def test_average_pooling_at_the_border_divides_by_the_pixels_that_exist() -> None:
    """Caffe clips the last window to the feature map before it divides: the average of ones is one everywhere."""
    pooled = cifar10_quick().pool3(torch.ones(1, 64, 8, 8))
    assert torch.equal(pooled, torch.ones(1, 64, 4, 4))
