"""Trainings with several seeds: compose them from `conf/train.yaml`, run them, find their earlier records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from membench.cli.command_line import compose_checked
from membench.cli.option_values import Values, check_size
from membench.core.checks import COUNT, FRACTION, NOT_NEGATIVE, WHOLE, Requirement, check, choice
from membench.core.configuration import method_of
from membench.core.errors import MembenchError
from membench.core.record import Configuration, Outcome, Record, is_simulated
from membench.core.result import Output
from membench.core.tables import write_csv
from membench.lab.training.curves import comparison_table, curve_table, describe_run, describe_training
from membench.lab.training.log import RunLog
from membench.lab.training.recipe import Recipe
from membench.sweep.composition import hydra_composition

SEEDS = Requirement(
    "a list of whole numbers, [0, 1, 2]",
    lambda value: isinstance(value, list) and value != [] and all(map(WHOLE.holds, value)),
)
SIZES = Requirement("a list of sizes, ['10 MB']", lambda value: isinstance(value, list))


@dataclass(frozen=True)
class Training:
    """One network, trained once for each seed.

    Attributes:
        runs: a configuration for each seed, as `run_seed` takes it.
        target_accuracy: a fraction; the first epoch that reaches it is reported.
    """

    name: str
    runs: tuple[Configuration, ...]
    target_accuracy: float


def compose_training(words: Sequence[str], name: str = "", *, own: Path | None = None) -> tuple[Training, Path, Output]:
    """Return the training that ``option=value`` words describe, the folder for its files, and the form of the answer.

    Args:
        name: by default made of the options.
        own: see `hydra_composition`.

    Raises:
        MembenchError: a value is invalid.
    """
    with hydra_composition(own):
        values = compose_checked("train", words)
    _check(values)
    shared = {key: values[key] for key in ("model", "data", "strategy", "backend", "budget")}
    if budgets := values["inference_budgets"]:
        shared["inference"] = {"strategy": values["inference_strategy"], "budgets": budgets}
    recipes = [values | {"seed": seed} for seed in values["seeds"]]
    runs = [shared | {"recipe": {key.name: each[key.name] for key in fields(Recipe)}} for each in recipes]
    model, data = values["model"]["name"], values["data"]["_target_"].rpartition(".")[2]
    batch, epochs = f"batch {values['batch_size']}", f"{values['epochs']} epochs"
    title = name or f"{model} on {data}, {batch}, {method_of(values)}, {epochs}"
    output = choice(Output, "output", values["output"])
    return Training(title, tuple(runs), values["target_accuracy"]), Path(values["folder"]), output


def compose_trainings(options: Mapping[str, Mapping[str, Any]]) -> list[Training]:
    """Return a paper's trainings, given by name with the options of `conf/train.yaml` that each changes."""
    words = {name: [f"{key}={value}" for key, value in changed.items()] for name, changed in options.items()}
    return [compose_training(words[name], name)[0] for name in words]


def run_trainings(trainings: Sequence[Training], directory: Path) -> dict[str, list[Record]]:
    """Run what has no record; write ``training.jsonl`` (records), ``training.csv``, ``training_comparisons.csv``.

    Return the records of each training, one for each seed.
    """
    from membench.lab.training.runs import run_seed  # torch takes seconds

    log = RunLog(directory / "training.jsonl")
    made: dict[str, list[Record]] = {}
    for training in trainings:
        print(training.name)
        made[training.name] = [log.run(run, run_seed, describe_run) for run in training.runs]
        print(describe_training(made[training.name], training.target_accuracy), flush=True)
    write_csv(curve_table(list(made.items())), directory / "training.csv")
    comparisons = comparison_table(list(made.items()))
    if len(comparisons):
        write_csv(comparisons, directory / "training_comparisons.csv")
        print(comparisons.to_string(index=False), flush=True)
    return made


def find_trainings(trainings: Sequence[Training], directory: Path) -> dict[str, list[Record]]:
    """Return the records, of all seeds, of the trainings that are complete as they are configured now."""
    log = RunLog(directory / "training.jsonl")
    found = {}
    for training in trainings:
        known = [record for run in training.runs if (record := log.find(run))]
        if len(known) == len(training.runs) and all(record.outcome is Outcome.OK for record in known):
            found[training.name] = known
    return found


def _check(values: Values) -> None:
    """Refuse values that a training cannot have."""
    check(COUNT, epochs=values["epochs"], batch_size=values["batch_size"])
    check(NOT_NEGATIVE, **{name: values[name] for name in ("learning_rate", "momentum", "weight_decay")})
    check(FRACTION, target_accuracy=values["target_accuracy"])
    check(SEEDS, seeds=values["seeds"])
    if is_simulated(dict(values)):
        raise MembenchError("a simulated step computes nothing; train with backend=cpu or backend=cuda")
    check(SIZES, inference_budgets=values["inference_budgets"])
    check_size("budget", values["budget"])
    for size in values["inference_budgets"]:
        check_size("inference_budgets", size)
