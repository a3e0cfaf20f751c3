"""Trainings with several seeds: compose them from `conf/train.yaml`, run them, find their earlier records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hydra import compose
from omegaconf import DictConfig, OmegaConf

from membench.cli.command_line import check_names, parse_changes
from membench.cli.commands import groups_of
from membench.cli.option_values import check_size, check_switches
from membench.core.checks import COUNT, FRACTION, NOT_NEGATIVE, WHOLE, check
from membench.core.configuration import method_of
from membench.core.errors import MembenchError
from membench.core.record import Configuration, Outcome, Record
from membench.papers.cells import hydra_composition, resolved
from membench.papers.tables import write_csv
from membench.training.curves import comparison_table, curve_table, describe_run, describe_training
from membench.training.log import RunLog
from membench.training.recipe import Recipe


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


def compose_training(overrides: Sequence[str]) -> tuple[Training, Path]:
    """Return the training that ``option=value`` words describe, and the folder for its files.

    Raises:
        HydraException: a word names an option or a file that does not exist.
        MembenchError: a value is invalid.
    """
    changes = parse_changes(overrides)
    check_names(changes, groups_of("train"))
    choices = [change.input_line or "" for change in changes if "." not in change.key_or_group]
    with hydra_composition():
        config = compose("train", list(overrides))
        check_switches(OmegaConf.to_container(compose("train", choices)), OmegaConf.to_container(config))
    return _training(_title(config), config), Path(config.output)


def compose_trainings(options: Mapping[str, Mapping[str, Any]]) -> list[Training]:
    """Return the trainings of a paper.

    Args:
        options: those of `conf/train.yaml` that each training changes, by its name.
    """
    with hydra_composition():
        return [
            _training(name, compose("train", [f"{key}={value}" for key, value in settings.items()]))
            for name, settings in options.items()
        ]


def run_trainings(trainings: Sequence[Training], directory: Path) -> dict[str, list[Record]]:
    """Run what has no record yet; write ``training.jsonl`` (records), ``training.csv`` and ``training_comparisons.csv``.

    Returns:
        The records of each training, one for each seed.
    """
    from membench.training.runs import run_seed  # torch takes seconds

    log = RunLog(directory / "training.jsonl")
    made: dict[str, list[Record]] = {}
    for training in trainings:
        print(training.name)
        made[training.name] = [
            log.run(configuration, run_seed, describe_run) for configuration in training.runs
        ]
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
        known = [log.find(configuration) for configuration in training.runs]
        if all(record is not None and record.outcome is Outcome.OK for record in known):
            found[training.name] = [record for record in known if record]
    return found


def _training(name: str, config: DictConfig) -> Training:
    values = resolved(config)
    _check(values)
    budgets = values["inference_budgets"]
    inference = (
        {"inference": {"strategy": values["inference_strategy"], "budgets": budgets}} if budgets else {}
    )
    runs = tuple(
        {
            **{key: values[key] for key in ("model", "data", "strategy", "backend", "budget")},
            **inference,
            "recipe": {key.name: values[key.name] for key in fields(Recipe) if key.name != "seed"}
            | {"seed": seed},
        }
        for seed in values["seeds"]
    )
    return Training(name, runs, values["target_accuracy"])


def _check(values: Mapping[Any, Any]) -> None:
    """Refuse values that a training cannot have."""
    check(COUNT, epochs=values["epochs"], batch_size=values["batch_size"])
    check(NOT_NEGATIVE, **{name: values[name] for name in ("learning_rate", "momentum", "weight_decay")})
    check(FRACTION, target_accuracy=values["target_accuracy"])
    seeds = values["seeds"]
    if not isinstance(seeds, list) or not seeds or not all(map(WHOLE.holds, seeds)):
        raise MembenchError(f"seeds is a list of whole numbers, [0, 1, 2], not {seeds!r}")
    if values["backend"]["name"] == "simulated":
        raise MembenchError("a simulated step computes nothing; train with backend=cpu or backend=cuda")
    if not isinstance(values["inference_budgets"], list):
        raise MembenchError(
            f"inference_budgets is a list of sizes, ['10 MB'], not {values['inference_budgets']!r}"
        )
    check_size("budget", values["budget"])
    for size in values["inference_budgets"]:
        check_size("inference_budgets", size)


def _title(config: DictConfig) -> str:
    data = config.data["_target_"].rpartition(".")[2]
    return f"{config.model.name} on {data}, batch {config.batch_size}, {method_of(config)}, {config.epochs} epochs"
