"""Training to accuracy: the same curves as plain PyTorch's, under every lossless strategy."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from membench.core.errors import InfeasibleSchedule, MembenchError
from membench.data.dataset import Dataset, Split
from membench.data.digits import digits
from membench.lab.training.loop import Epoch, accuracy, check_fit, infer_within, train
from membench.lab.training.recipe import Recipe
from membench.models.digits import digits_alexnet, digits_cnn

CRITERION = nn.CrossEntropyLoss()
RECIPE = Recipe(epochs=2, batch_size=48, learning_rate=0.05, momentum=0.9, weight_decay=1e-4, seed=3)


@pytest.fixture(scope="module")
def few() -> Dataset:
    """160 digits to train on, which leave a last batch of 16, and 64 to test."""
    whole = digits()
    training, test = (
        Split(split.images[torch.arange(count)], split.labels[:count])
        for split, count in ((whole.training, 160), (whole.test, 64))
    )
    return Dataset("few", training, test, whole.classes, whole.image_shape)


def network() -> nn.Module:
    torch.manual_seed(RECIPE.seed)
    return digits_cnn()


def plain_curve(module: nn.Module, dataset: Dataset) -> list[tuple[float, float, float]]:
    """Train as a PyTorch user writes it, and return loss and accuracies of each epoch."""
    order = torch.Generator().manual_seed(RECIPE.seed)
    optimizer = torch.optim.SGD(
        module.parameters(), RECIPE.learning_rate, RECIPE.momentum, weight_decay=RECIPE.weight_decay
    )
    torch.manual_seed(RECIPE.seed)
    curve = []
    for _ in range(RECIPE.epochs):
        losses = []
        module.train()
        for part in torch.randperm(160, generator=order).split(RECIPE.batch_size):
            images, labels = dataset.training.batch(part)
            optimizer.zero_grad()
            loss = CRITERION(module(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(len(part) * loss.detach())
        module.eval()
        right = []
        for split in (dataset.training, dataset.test):
            images, labels = split.batch(torch.arange(len(split)))
            with torch.no_grad():
                right.append((module(images).argmax(1) == labels).double().mean().item())
        curve.append((torch.stack(losses).sum().item() / 160, *right))
    return curve


def values(epochs: list[Epoch]) -> list[tuple[float, float, float]]:
    return [(epoch.loss, epoch.training_accuracy, epoch.test_accuracy) for epoch in epochs]


@pytest.mark.slow
def test_a_lossless_strategy_gives_the_curve_and_weights_of_plain_pytorch_bit_for_bit(few: Dataset) -> None:
    expected_module = network()
    expected = plain_curve(expected_module, few)
    assert expected[-1][0] < expected[0][0]
    for strategy in ("eager", "layrub_hybrid", "memonger"):
        module = network()
        assert values(list(train(module, CRITERION, few, RECIPE, strategy=strategy))) == expected, strategy
        for name, weight in expected_module.state_dict().items():
            assert torch.equal(module.state_dict()[name], weight), (strategy, name)


def test_what_else_draws_random_numbers_changes_nothing(few: Dataset) -> None:
    """The order of the images and dropout depend only on the seed."""
    torch.manual_seed(99)
    start = network()
    first = values(list(train(copy.deepcopy(start), CRITERION, few, RECIPE)))
    torch.rand(5)
    assert values(list(train(copy.deepcopy(start), CRITERION, few, RECIPE))) == first


def test_seeds_differ(few: Dataset) -> None:
    start = network()
    one, other = (
        values(list(train(copy.deepcopy(start), CRITERION, few, Recipe(1, 48, 0.05, 0.9, 0.0, seed))))
        for seed in (0, 1)
    )
    assert one != other


def test_a_budget_that_cannot_be_kept_is_refused_before_anything_is_trained(few: Dataset) -> None:
    module = network()
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(InfeasibleSchedule):
        next(train(module, CRITERION, few, RECIPE, budget="10 KB"))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("mode", [nn.Module.train, nn.Module.eval])
def test_accuracy_is_of_the_evaluation_mode_and_leaves_the_mode(
    few: Dataset, mode: Callable[[nn.Module], nn.Module]
) -> None:
    module = network()
    mode(module)
    was_training = module.training
    state = copy.deepcopy(module.state_dict())
    found = accuracy(module, few.test, torch.device("cpu"))
    assert module.training == was_training
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    images, labels = few.test.batch(torch.arange(64))
    assert found == (module.eval()(images).argmax(1) == labels).sum().item() / 64


def test_images_that_a_network_does_not_take_are_refused(few: Dataset) -> None:
    check_fit(few, {"name": "digits_cnn", "input_shape": [1, 8, 8], "classes": 10})
    with pytest.raises(MembenchError, match="lenet takes 1x28x28 images of 10 classes, and few has 1x8x8 images"):
        check_fit(few, {"name": "lenet", "input_shape": [1, 28, 28], "classes": 10})
    with pytest.raises(MembenchError, match="gpt2 is not described by input_shape and classes"):
        check_fit(few, {"name": "gpt2", "vocabulary": 50257, "inputs": {"input_ids": {"shape": [8]}}})


@pytest.mark.slow
def test_mmcnn_classifies_as_the_unlimited_network_does(few: Dataset) -> None:
    """Its Table 1, in kind: the paper's three accuracies change by up to 0.2 points, ours by none."""
    torch.manual_seed(0)
    module = digits_alexnet()
    *_, last = train(module, CRITERION, few, Recipe(6, 16, 0.03, 0.9, 0.0, 0))
    module.eval()
    held_by_weights = 4 * sum(weight.numel() for weight in module.parameters())
    limit = held_by_weights // 3
    found = infer_within(module, few.test, strategy="mmcnn", budget=limit)
    assert found.accuracy == found.unlimited_accuracy == last.test_accuracy > 0.2
    assert found.largest_difference < 1e-5
    assert found.peak_bytes <= limit
    with pytest.raises(InfeasibleSchedule):
        infer_within(module, few.test, strategy="mmcnn", budget="1 KB")
