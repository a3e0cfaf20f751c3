"""One run of a training: from a configuration to the record of its learning curve."""

from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import nn

from membench.backends.real import real_device
from membench.capture.capture import capture
from membench.core.configuration import instantiate
from membench.core.record import Configuration, Outcome, Record, Source, configuration_hash
from membench.core.step.workload import Workload
from membench.data.dataset import Dataset
from membench.execution.measurement import synchronize
from membench.lab.training.loop import Epoch, accuracy, check_fit, infer_within, inference_step, train
from membench.lab.training.progress import Progress
from membench.lab.training.recipe import Recipe
from membench.lab.training.threads import threads_for, use_threads
from membench.strategies.base import Strategy
from membench.sweep.cells.model import build_loss
from membench.sweep.cells.run import outcome_of
from membench.sweep.results.provenance import device_facts, provenance


def run_seed(configuration: Configuration) -> Record:
    """Train a network with one seed and return the record; a failure is a record too.

    A sample of each metric is its value after one epoch; ``initial_training_accuracy`` is of the untrained network.

    Args:
        configuration: resolved, as plain dicts: ``model``, ``data``, ``strategy``, ``backend`` (name), ``recipe`` (see
            `Recipe`) and ``budget``. With ``inference`` (``strategy``, ``budgets``), the trained network is also tested
            under each of these limits, and the metrics of `LimitedInference` carry the limit as a suffix.
    """
    epochs: list[Epoch] = []
    backend: str = configuration["backend"]["name"]
    outcome, reason, facts = Outcome.OK, "", provenance()
    initial: dict[str, float] = {}
    limited: dict[str, float] = {}
    try:
        facts |= device_facts(backend)
        dataset: Dataset = instantiate(configuration["data"], Dataset)
        module = _untrained(configuration, dataset)
        threads = _threads(configuration, dataset, module)
        if backend == "cpu":
            facts["threads"] = threads
        with use_threads(threads):
            initial = _initial_accuracy(backend, dataset, module)
            _train(configuration, dataset, module, epochs)
            limited = _infer_within(configuration, dataset, module)
    except Exception as error:  # a failure is a record; it never ends a sweep
        outcome, reason = outcome_of(error)
    curve = [asdict(epoch) for epoch in epochs]
    return Record(
        configuration,
        configuration_hash(configuration),
        Source.MEASURED,
        outcome,
        reason,
        metrics=initial | (curve[-1] if curve else {}) | limited,
        samples={name: tuple(epoch[name] for epoch in curve) for name in (curve[0] if curve else ())},
        provenance=facts,
    )


def _untrained(configuration: Configuration, dataset: Dataset) -> nn.Module:
    """Return the network as its seed initialises it."""
    model = configuration["model"]
    check_fit(dataset, model)
    torch.manual_seed(configuration["recipe"]["seed"])
    module: nn.Module = instantiate(model["module"], nn.Module)
    return module


def _threads(configuration: Configuration, dataset: Dataset, module: nn.Module) -> int:
    """Return the number of CPU threads to train with; torch's own where a GPU computes."""
    available = torch.get_num_threads()
    if configuration["backend"]["name"] != "cpu":
        return available
    model, size = configuration["model"], configuration["recipe"]["batch_size"]
    images, labels = dataset.training.batch(torch.arange(min(size, len(dataset.training))))
    workload = Workload(model["name"], module.train(), build_loss(model["loss"]), (images,), (labels,))
    return threads_for(capture(workload).graph, available)


def _initial_accuracy(backend: str, dataset: Dataset, module: nn.Module) -> dict[str, float]:
    """Return the accuracy on the training images before the first step."""
    device = real_device(backend)
    return {"initial_training_accuracy": accuracy(module.to(device), dataset.training, device)}


def _train(configuration: Configuration, dataset: Dataset, module: nn.Module, epochs: list[Epoch]) -> None:
    """Train the network in place; append each epoch as it ends."""
    model, recipe = configuration["model"], Recipe(**configuration["recipe"])
    backend = configuration["backend"]["name"]
    device = real_device(backend)
    for limit in _limits(configuration):  # refuse a limit that cannot be kept before training
        inference_step(module.eval(), dataset.test, **limit).close()
    with Progress(recipe, len(dataset.training), partial(synchronize, device)) as progress:
        epochs.extend(
            train(
                module.to(device),
                build_loss(model["loss"]),
                dataset,
                recipe,
                strategy=instantiate(configuration["strategy"], Strategy),
                backend=backend,
                budget=configuration["budget"],
                on_step=progress.step,
            )
        )


def _infer_within(configuration: Configuration, dataset: Dataset, module: nn.Module) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for limit in _limits(configuration):
        found = infer_within(module.eval(), dataset.test, **limit)
        metrics |= {f"inference_{name}:{limit['budget']}": value for name, value in asdict(found).items()}
    return metrics


def _limits(configuration: Configuration) -> list[dict[str, Any]]:
    """Return strategy, budget and backend of each requested inference."""
    requested = configuration.get("inference", {"strategy": None, "budgets": ()})
    backend = configuration["backend"]["name"]
    return [
        {"strategy": requested["strategy"], "budget": budget, "backend": backend} for budget in requested["budgets"]
    ]
