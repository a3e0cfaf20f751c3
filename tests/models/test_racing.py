"""The race between a convolution's gradients: what is overwritten is what the weight gradient reads."""

import copy
from contextlib import closing

import pytest
import torch
from torch import Tensor, nn

import membench
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.models.racing import racing


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False))


def gradients(module: nn.Module, images: Tensor) -> list[Tensor]:
    module.zero_grad()
    module(images).square().sum().backward()
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(("overwritten", "count"), [(1.0, 4), (0.5, 2)])
def test_the_weight_gradient_reads_data_gradients(overwritten: float, count: int) -> None:
    images, plain = torch.rand(4, 1, 8, 8), network()
    raced = racing(copy.deepcopy(plain), overwritten)
    first_weight, first_bias, second_weight = gradients(raced, images)

    hidden = plain[1](plain[0](images)).detach().requires_grad_()
    output = plain[2](hidden)
    output.square().sum().backward()
    assert hidden.grad is not None
    read = torch.cat([hidden.grad[:count], hidden.detach()[count:]])
    expected = torch.nn.grad.conv2d_weight(read, plain[2].weight.shape, 2 * output.detach(), stride=2, padding=1)
    torch.testing.assert_close(second_weight, expected)

    of_first = gradients(plain, images)[:2]  # images have no gradient, so the first convolution has no race
    torch.testing.assert_close([first_weight, first_bias], of_first)


def test_a_step_of_membench_has_the_race() -> None:
    images, labels, raced = torch.rand(4, 1, 8, 8), torch.zeros(4, 4, 3, 3), racing(network())
    loss = nn.MSELoss()
    loss(raced(images), labels).backward()
    expected = [parameter.grad for parameter in raced.parameters()]
    raced.zero_grad()
    with closing(membench.compile(raced, loss, (images, labels), strategy="layrub_hybrid")) as step:
        step(images, labels)
    for parameter, gradient in zip(raced.parameters(), expected, strict=True):
        assert parameter.grad is not None and gradient is not None
        assert torch.equal(parameter.grad, gradient)


def test_the_race_covers_a_fraction_of_a_batch() -> None:
    with pytest.raises(MembenchError, match="overwritten"):
        racing(network(), 1.5)


def test_the_configured_network_takes_other_images() -> None:
    model = configuration.read("model", "racing_alexnet")
    assert model["module"]["network"]["_target_"] == configuration.read("model", "digits_alexnet")["module"]["_target_"]
