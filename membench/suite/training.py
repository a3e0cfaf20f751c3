"""One training, from a configuration to a record that holds its curve, whatever happens."""

from dataclasses import asdict
from typing import Any

import torch
from tqdm import tqdm

from membench.configuration import instantiate
from membench.dataset import Dataset
from membench.recipe import Recipe
from membench.record import Outcome, Record, Source, configuration_hash
from membench.step import real_device
from membench.suite.cell import outcome_of
from membench.suite.provenance import device_facts, provenance
from membench.training import Epoch, check_fit, train


def run_training(configuration: dict[str, Any]) -> Record:
    """Train a network once and return its record: a sample of each metric is its value after one epoch.

    Args:
        configuration: resolved, as plain dicts: ``model``, ``data``, ``strategy``, ``backend`` (name), ``recipe`` (see
            `Recipe`) and ``budget``.
    """
    epochs: list[Epoch] = []
    outcome, reason, facts = Outcome.OK, "", provenance()
    try:
        facts |= device_facts(configuration["backend"]["name"])
        _train(configuration, epochs)
    except Exception as error:  # a failure is a record; it never ends a sweep
        outcome, reason = outcome_of(error)
    curve = [asdict(epoch) for epoch in epochs]
    return Record(
        configuration,
        configuration_hash(configuration),
        Source.MEASURED,
        outcome,
        reason,
        metrics=curve[-1] if curve else {},
        samples={name: tuple(epoch[name] for epoch in curve) for name in (curve[0] if curve else ())},
        provenance=facts,
    )


def _train(configuration: dict[str, Any], epochs: list[Epoch]) -> None:
    model, recipe = configuration["model"], Recipe(**configuration["recipe"])
    backend = configuration["backend"]["name"]
    dataset: Dataset = instantiate(configuration["data"])
    check_fit(dataset, model=model["name"], input_shape=model["input_shape"], classes=model["classes"])
    torch.manual_seed(recipe.seed)
    module = instantiate(model["module"]).to(real_device(backend))
    made = train(
        module,
        instantiate(model["loss"]),
        dataset,
        recipe,
        strategy=instantiate(configuration["strategy"]),
        backend=backend,
        budget=configuration["budget"],
    )
    bar = tqdm(made, total=recipe.epochs, desc=f"seed {recipe.seed}", unit="epoch", leave=False)
    epochs.extend(bar)
