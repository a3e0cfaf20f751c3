"""Losses over classes in micro-batches: what would not add up to the whole batch's mean is refused."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import membench
from membench.core.errors import MembenchError, UnsupportedModel

LOSSES: dict[str, tuple[Callable[..., Tensor], int]] = {
    "of tokens": (lambda scores, labels: functional.cross_entropy(scores.flatten(0, 1), labels.flatten()), -100),
    "of the next tokens": (
        lambda scores, labels: functional.cross_entropy(scores[:, :-1].flatten(0, 1), labels[:, 1:].flatten()),
        -100,
    ),
    "of a chosen class": (lambda s, t: functional.cross_entropy(s.transpose(1, 2), t, ignore_index=2), 2),
}


def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 3, 5), torch.tensor([[0, 1, 3], [3, 1, 0], [1, 1, 0], [0, 3, 3]])


@pytest.mark.parametrize("name", LOSSES)
def test_targets_that_the_loss_ignores_are_refused_and_others_are_right(name: str) -> None:
    loss, ignored = LOSSES[name]
    module, (inputs, labels) = nn.Linear(5, 4), data()
    step = membench.compile(module, loss, (inputs, labels), micro_batch=2)
    step(inputs, labels)
    found = module.weight.grad
    assert found is not None
    module.zero_grad()
    loss(module(inputs), labels).backward()
    torch.testing.assert_close(found, module.weight.grad)
    labels[1, 1:] = ignored
    with pytest.raises(MembenchError, match=f"2 of 12 targets are {ignored}, which the loss ignores"):
        step(inputs, labels)


def test_a_mean_weighted_by_classes_is_refused() -> None:
    weights = torch.tensor([1.0, 2.0, 1.0, 1.0])
    with pytest.raises(UnsupportedModel, match="its mean is weighted by their classes"):
        membench.compile(
            nn.Linear(5, 4),
            lambda scores, labels: functional.cross_entropy(scores.transpose(1, 2), labels, weights),
            data(),
            micro_batch=2,
        )
