"""Batches of nested tensors, by position or by name, against plain PyTorch."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import membench
from membench.core.errors import MembenchError, ShapeMismatch

STRATEGIES = ("eager", "memonger", "vdnn_all", "layrub_hybrid", "superneurons")
SAMPLES = 6


@dataclass
class Scores:
    """An output that torch's pytree cannot open."""

    loss: Tensor
    scores: Tensor


class Reader(nn.Module):
    """Takes tokens and a mask by name, and a list with a dict of features."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(16, 8))
        self.score = nn.Linear(8, 3)

    def forward(self, ids: Tensor, features: list[dict[str, Tensor]], mask: Tensor, scale: float = 1.0) -> Scores:
        words = self.embed(ids) + features[0]["pitch"].unsqueeze(-1)
        hidden = self.layers(words) * mask.unsqueeze(-1)
        scores = self.score(hidden.sum(1)) * scale
        return Scores(loss=scores.square().mean(), scores=scores)


def criterion(output: Scores, labels: Tensor, weight: dict[str, Tensor]) -> Tensor:
    losses = nn.functional.cross_entropy(output.scores, labels, reduction="none")
    return (losses * weight["of_sample"]).mean() + output.loss


def batch_of(seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    torch.manual_seed(seed)
    inputs = {
        "ids": torch.randint(11, (SAMPLES, 5)),
        "features": [{"pitch": torch.randn(SAMPLES, 5)}],
        "mask": torch.randint(2, (SAMPLES, 5)),
        "scale": 0.5,
    }
    return inputs, {"labels": torch.randint(3, (SAMPLES,)), "weight": {"of_sample": torch.rand(SAMPLES)}}


def in_other_order(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: arguments[name] for name in reversed(arguments)}


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_steps_on_nested_batches_are_exact(strategy: str, by_name: bool) -> None:
    torch.manual_seed(1)
    module = Reader()
    plain = copy.deepcopy(module)
    batches = batch_of(2), batch_of(3)

    def given(batch: tuple[dict[str, Any], dict[str, Any]]) -> Any:
        return batch if by_name else tuple(tuple(each.values()) for each in batch)

    step = membench.compile(module, criterion, given(batches[0]), strategy=strategy)
    for inputs, targets in batches:
        torch.manual_seed(4)
        expected = criterion(plain(**inputs), **targets)
        expected.backward()
        torch.manual_seed(4)
        data = (in_other_order(inputs), in_other_order(targets)) if by_name else given((inputs, targets))
        assert torch.equal(step(*data), expected)
        for weight, reference in zip(module.parameters(), plain.parameters(), strict=True):
            assert torch.equal(weight.grad, reference.grad)
        module.zero_grad()
        plain.zero_grad()


def test_micro_batches_are_cut_from_every_tensor() -> None:
    torch.manual_seed(1)
    module = Reader().eval()
    plain = copy.deepcopy(module)
    inputs, targets = batch_of(2)
    step = membench.compile(module, criterion, (inputs, targets), micro_batch=2)
    loss = step(in_other_order(inputs), targets)
    expected = criterion(plain(**inputs), **targets)
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for weight, reference in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, reference.grad)


def test_a_simulated_step_takes_nested_batches_on_the_meta_device() -> None:
    with torch.device("meta"):
        step = membench.compile(Reader(), criterion, batch_of(0), backend="simulated", device="k40m")
    assert step.predicted_peak_bytes > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": torch.ones(SAMPLES, 4)}, r"inputs\['mask'\] is a cpu tensor of shape \(6, 4\)"),
        ({"features": [{"pitch": None}]}, r"inputs\['features'\]\[0\]\['pitch'\] is None"),
        ({"scale": 2.0}, r"inputs\['scale'\] is 2.0; the step takes 0.5"),
        ({"features": []}, "nested as"),
        ({"other": 1}, "nested as"),
    ],
)
def test_other_data_is_refused_with_its_place(change: dict[str, Any], message: str) -> None:
    inputs, targets = batch_of(2)
    step = membench.compile(Reader(), criterion, (inputs, targets))
    with pytest.raises(ShapeMismatch, match=message):
        step(inputs | change, targets)


def test_data_that_requires_a_gradient_is_refused_with_its_place() -> None:
    inputs, targets = batch_of(2)
    pitch = inputs["features"][0]["pitch"].clone().requires_grad_()
    step = membench.compile(Reader(), criterion, (inputs, targets))
    with pytest.raises(MembenchError, match=r"inputs\['features'\]\[0\]\['pitch'\] requires a gradient"):
        step(inputs | {"features": [{"pitch": pitch}]}, targets)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ({"labels": torch.zeros(SAMPLES)}, "1 target, and takes .*missing a required argument: 'weight'"),
        ({"labels": torch.zeros(SAMPLES), "other": 1}, "2 targets"),
    ],
)
def test_a_loss_without_an_argument_of_that_name_is_refused(targets: dict[str, Any], message: str) -> None:
    with pytest.raises(MembenchError, match=message):
        membench.compile(Reader(), criterion, (batch_of(0)[0], targets))
