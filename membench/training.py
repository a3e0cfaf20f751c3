"""Training to accuracy: epochs of a captured step under a memory strategy, and what the network has learned after each.

for each epoch:
    for each batch of a fresh random order:
        gradients <- the schedule's step
        weights   <- stochastic gradient descent with momentum
    accuracy on all training and on all test images, in evaluation mode, by plain PyTorch
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from membench.dataset import Dataset, Split
from membench.errors import MembenchError
from membench.execution.measurement import synchronize
from membench.recipe import Recipe
from membench.step import SimulatedStep, real_device
from membench.step import compile as compile_step
from membench.strategies.base import Strategy
from membench.sub_batched_step import SubBatchedStep
from membench.training_step import TrainingStep

_TEST_BATCH = 256


@dataclass(frozen=True)
class Epoch:
    """What came out of one epoch.

    Attributes:
        loss: mean over the images, each with the weights of its step.
        training_accuracy: fraction of the training images that are classified rightly after the epoch.
        test_accuracy: likewise of the test images.
        time_s: of the epoch's steps, without the tests after it.
    """

    loss: float
    training_accuracy: float
    test_accuracy: float
    time_s: float


def train(
    module: nn.Module,
    loss: Callable[..., Tensor],
    dataset: Dataset,
    recipe: Recipe,
    *,
    strategy: str | Strategy = "eager",
    backend: str = "cpu",
    budget: str | int | None = None,
) -> Iterator[Epoch]:
    """Train a network in place and yield each epoch.

    Args:
        module: the network, on the backend's device; takes images as float32 from 0 to 1.
        loss: called with the module's output and the labels; returns the mean over the batch.
        backend: ``"cpu"`` or ``"cuda"``.
        budget: the most that a step may hold: ``"200 MB"`` or bytes.

    Raises:
        UnsupportedModel, UnsupportedStrategy, InfeasibleSchedule: as `membench.compile`.
        MembenchError: there is no such backend, or no GPU.
    """
    device, images = real_device(backend), dataset.training
    order = torch.Generator().manual_seed(recipe.seed)
    module.train()

    def step_for(batch_size: int) -> TrainingStep | SubBatchedStep:
        example = _on(device, images.batch(torch.arange(batch_size)))
        step = compile_step(module, loss, example, strategy=strategy, backend=backend, budget=budget)
        assert not isinstance(step, SimulatedStep)
        return step

    steps = {len(part): step_for(len(part)) for part in torch.arange(len(images)).split(recipe.batch_size)}
    optimizer = torch.optim.SGD(
        module.parameters(), recipe.learning_rate, recipe.momentum, weight_decay=recipe.weight_decay
    )
    torch.manual_seed(recipe.seed)  # after capture and planning, which may draw random numbers
    try:
        for _ in range(recipe.epochs):
            losses = []
            start_s = time.perf_counter()
            for part in torch.randperm(len(images), generator=order).split(recipe.batch_size):
                optimizer.zero_grad()
                losses.append(len(part) * steps[len(part)](*_on(device, images.batch(part))))
                optimizer.step()
            synchronize(device)
            time_s = time.perf_counter() - start_s
            yield Epoch(
                torch.stack(losses).sum().item() / len(images),
                accuracy(module, images, device),
                accuracy(module, dataset.test, device),
                time_s,
            )
    finally:
        for step in steps.values():
            step.close()


def accuracy(module: nn.Module, split: Split, device: torch.device) -> float:
    """Return the fraction of images that a network in evaluation mode classifies rightly; leaves its mode as it was."""
    was_training = module.training
    module.eval()
    with torch.no_grad():
        found = _fraction_right(module, split, device, _TEST_BATCH)
    module.train(was_training)
    return found


def accuracy_of_inference(
    module: nn.Module,
    split: Split,
    *,
    strategy: str | Strategy,
    backend: str = "cpu",
    budget: str | int | None = None,
) -> float:
    """Return the fraction of images that a network classifies rightly, one at a time, under a strategy of inference.

    mmCNN's Table 1 compares this with `accuracy`.

    Args:
        module: the network, in evaluation mode, on the backend's device.
        budget: the most that inference may hold.

    Raises:
        UnsupportedModel, UnsupportedStrategy, InfeasibleSchedule: as `membench.compile`.
    """
    device = real_device(backend)
    example, _ = _on(device, split.batch(torch.arange(1)))
    step = compile_step(module, None, (example, ()), strategy=strategy, backend=backend, budget=budget)
    assert isinstance(step, TrainingStep)
    try:
        return _fraction_right(step, split, device, batch_size=1)
    finally:
        step.close()


def _fraction_right(
    predict: Callable[[Tensor], Tensor], split: Split, device: torch.device, batch_size: int
) -> float:
    right = 0
    for part in torch.arange(len(split)).split(batch_size):
        images, labels = _on(device, split.batch(part))
        right += int((predict(images).argmax(1) == labels).sum())
    return right / len(split)


def check_fit(dataset: Dataset, *, model: str, input_shape: tuple[int, ...], classes: int) -> None:
    """Refuse images that a network does not take.

    Raises:
        MembenchError: shapes or classes differ; names both.
    """
    if (tuple(input_shape), classes) != (dataset.image_shape, dataset.classes):
        raise MembenchError(
            f"{model} takes {_described(tuple(input_shape), classes)}, and {dataset.name} has "
            f"{_described(dataset.image_shape, dataset.classes)}; choose another model or other data"
        )


def _described(shape: tuple[int, ...], classes: int) -> str:
    return f"{'x'.join(map(str, shape))} images of {classes} classes"


def _on(device: torch.device, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    images, labels = batch
    return images.to(device), labels.to(device)
