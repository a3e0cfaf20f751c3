"""Training to accuracy: epochs of a compiled step under a memory strategy, each followed by a test.

for each epoch:
    for each batch of a fresh random order:
        gradients <- the schedule's step
        weights   <- stochastic gradient descent with momentum
    accuracy on all training and on all test images, in evaluation mode, by plain PyTorch
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from membench.backends.real import real_device
from membench.core.errors import MembenchError
from membench.data.dataset import Dataset, Split
from membench.execution.measurement import synchronize
from membench.lab.training.recipe import Recipe
from membench.steps.compile import compile as compile_step
from membench.steps.real.compiled_step import CompiledStep
from membench.steps.real.micro_batched_step import MicroBatchedStep
from membench.strategies.base import Strategy

_TEST_BATCH = 256


@dataclass(frozen=True)
class Epoch:
    """Loss, accuracies and time of one epoch.

    Attributes:
        loss: mean over the images, each with the weights of its step.
        training_accuracy: fraction of the training images classified correctly after the epoch.
        test_accuracy: fraction of the test images classified correctly after the epoch.
        time_s: time of the epoch's steps, without the tests.
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
    on_step: Callable[[], None] = lambda: None,
) -> Iterator[Epoch]:
    """Train a network in place and yield each epoch.

    Args:
        module: the network, on the backend's device; takes images as float32 from 0 to 1.
        loss: called with the module's output and the labels; returns the mean over the batch.
        backend: ``"cpu"`` or ``"cuda"``.
        budget: the limit of a step's memory, ``"200 MB"`` or bytes.
        on_step: called after each step.

    Raises:
        UnsupportedModel, UnsupportedStrategy, InfeasibleSchedule: see `membench.compile`.
        MembenchError: the backend is unknown, or needs a GPU that is missing.
    """
    device, images = real_device(backend), dataset.training
    module.train()
    compiled = partial(compile_step, module, loss, strategy=strategy, backend=backend, budget=budget)
    sizes = sorted({len(part) for part in torch.arange(len(images)).split(recipe.batch_size)})
    steps = {size: _real(compiled(_on(device, images.batch(torch.arange(size))))) for size in sizes}
    try:
        yield from _epochs(module, steps, dataset, recipe, device, on_step)
    finally:
        for step in steps.values():
            step.close()


def _real(step: object) -> CompiledStep | MicroBatchedStep:
    assert isinstance(step, CompiledStep | MicroBatchedStep)
    return step


def _epochs(
    module: nn.Module,
    steps: Mapping[int, CompiledStep | MicroBatchedStep],
    dataset: Dataset,
    recipe: Recipe,
    device: torch.device,
    on_step: Callable[[], None],
) -> Iterator[Epoch]:
    images, order = dataset.training, torch.Generator().manual_seed(recipe.seed)
    optimizer = torch.optim.SGD(
        module.parameters(), recipe.learning_rate, recipe.momentum, weight_decay=recipe.weight_decay
    )
    torch.manual_seed(recipe.seed)  # after capture and planning, which may draw random numbers
    for _ in range(recipe.epochs):
        losses = []
        start_s = time.perf_counter()
        for part in torch.randperm(len(images), generator=order).split(recipe.batch_size):
            optimizer.zero_grad()
            losses.append(len(part) * steps[len(part)](*_on(device, images.batch(part))))
            optimizer.step()
            on_step()
        synchronize(device)
        time_s = time.perf_counter() - start_s
        yield Epoch(
            torch.stack(losses).sum().item() / len(images),
            accuracy(module, images, device),
            accuracy(module, dataset.test, device),
            time_s,
        )


def accuracy(module: nn.Module, split: Split, device: torch.device) -> float:
    """Return the fraction of images that a network classifies correctly in evaluation mode; its mode is restored.

    Weights that a strategy keeps on the host are copied to the device.
    """
    was_training = module.training
    module.eval()
    state = {name: tensor.to(device) for name, tensor in chain(module.named_parameters(), module.named_buffers())}
    correct = 0
    with torch.no_grad():
        for part in torch.arange(len(split)).split(_TEST_BATCH):
            images, labels = _on(device, split.batch(part))
            correct += _count_correct(functional_call(module, state, images), labels)
    module.train(was_training)
    return correct / len(split)


@dataclass(frozen=True)
class LimitedInference:
    """Accuracy of a network with and without a memory limit, one image at a time (mmCNN, Table 1).

    Attributes:
        accuracy: fraction of the images classified correctly under the limit.
        unlimited_accuracy: fraction classified correctly without a limit.
        largest_difference: between the outputs, relative to the largest output; 0 if they are bit-equal.
        peak_bytes: predicted peak of inference under the limit, weights and input included.
    """

    accuracy: float
    unlimited_accuracy: float
    largest_difference: float
    peak_bytes: int


def inference_step(
    module: nn.Module, split: Split, *, strategy: str | Strategy, budget: str | int, backend: str = "cpu"
) -> CompiledStep:
    """Return a step that classifies one image within a memory limit; see `infer_within`."""
    example, _ = split.batch(torch.arange(1))
    step = compile_step(module, None, (example, ()), strategy=strategy, backend=backend, budget=budget)
    assert isinstance(step, CompiledStep)
    return step


def infer_within(
    module: nn.Module, split: Split, *, strategy: str | Strategy, budget: str | int, backend: str = "cpu"
) -> LimitedInference:
    """Classify every image with and without a memory limit.

    Args:
        module: the network, in evaluation mode; its weights end up where the limited step keeps them.
        strategy: a strategy for inference.
        budget: the limit, ``"5 MB"`` or bytes.

    Raises:
        UnsupportedModel, UnsupportedStrategy, InfeasibleSchedule: see `membench.compile`.
    """
    device = real_device(backend)
    batches = [split.batch(image) for image in torch.arange(len(split)).split(1)]
    module.to(device)
    with torch.no_grad():
        unlimited = torch.cat([module(image.to(device)) for image, _ in batches])
    step = inference_step(module, split, strategy=strategy, budget=budget, backend=backend)
    try:
        limited = torch.cat([step(image.to(step.workload.device)) for image, _ in batches])
    finally:
        step.close()
    labels = torch.cat([label for _, label in batches]).to(device)
    return LimitedInference(
        accuracy=_count_correct(limited, labels) / len(split),
        unlimited_accuracy=_count_correct(unlimited, labels) / len(split),
        largest_difference=((limited - unlimited).abs().max() / unlimited.abs().max()).item(),
        peak_bytes=step.predicted_peak_bytes,
    )


def _count_correct(output: Tensor, labels: Tensor) -> int:
    return int((output.argmax(1) == labels).sum())


def check_fit(dataset: Dataset, model: Mapping[str, Any]) -> None:
    """Check that a network takes a dataset's images.

    Args:
        model: options as in a file of ``conf/model``.

    Raises:
        MembenchError: shapes or classes differ, or the network takes something else than images.
    """
    name, input_shape, classes = model["name"], model.get("input_shape"), model.get("classes")
    if not input_shape or not classes or model.get("inputs"):
        raise MembenchError(f"{name} is not described by input_shape and classes, and training is on images")
    if (tuple(input_shape), classes) != (dataset.image_shape, dataset.classes):
        raise MembenchError(
            f"{name} takes {_described(tuple(input_shape), classes)}, and {dataset.name} has "
            f"{_described(dataset.image_shape, dataset.classes)}; choose another model or other data"
        )


def _described(shape: tuple[int, ...], classes: int) -> str:
    return f"{'x'.join(map(str, shape))} images of {classes} classes"


def _on(device: torch.device, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    images, labels = batch
    return images.to(device), labels.to(device)
