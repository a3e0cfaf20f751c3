"""Measure every strategy on the GPU at hand; needs neither Hydra nor W&B.

    python -m membench.cli.measure                             all of MODELS, at the paper's batch size and one that fills the card
    python -m membench.cli.measure models=resnet50 strategies=eager,layrub_hybrid batch_sizes=32,largest
    python -m membench.cli.measure task=limits budget=12GB     largest batches and greatest depth under a cap
    python -m membench.cli.measure cuda_graph=true models=resnet1001 strategies=eager batch_sizes=32

Every cell runs in a process of its own. Its record is a file in ``<results>/<gpu>/records`` as soon as it is there; a cell
that has one is not run again unless ``rerun`` says so. The tables ``<results>/<gpu>/<task>-<model>.csv`` are made of them.
``results`` is ``results/measured``, or with ``backend=cpu`` ``outputs/measured``, which is not committed.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from membench.cli.option_values import check_size
from membench.core import configuration
from membench.core.checks import POSITIVE, choice, number
from membench.core.device import file_name
from membench.core.errors import MembenchError
from membench.core.files import complaint
from membench.core.record import LARGEST, Configuration, Outcome, Record
from membench.core.units import parse_bytes
from membench.papers.device_table import device_table
from membench.papers.tables import write_csv
from membench.sweep.limits import largest
from membench.sweep.listing import INTERRUPTED, announced
from membench.sweep.provenance import device_facts_from_outside
from membench.sweep.records import Records, Rerun
from membench.sweep.search import SearchError, checked
from membench.sweep.worker import Workers

MODELS = ("resnet50", "resnet152", "resnet1001", "vgg16", "wrn28_10", "alexnet")
LIMIT_MODELS = ("alexnet", "vgg16", "resnet34", "resnet50", "resnet56_cifar", "wrn28_10")
"""Those of Layrub's Table 7."""
DEPTHS = (50, 101, 152, 302, 695, 1001, 1172, 1304, 1517)
"""The ImageNet ResNets that the papers define; the greatest depth is looked for among them."""
DEPTH_BATCH_SIZES = (32, 16)
LIMIT_STRATEGIES = ("eager", "network_wide", "layrub_hybrid")


@dataclass(frozen=True)
class Settings:
    """What the command line may say, as ``name=value``; lists are separated by commas."""

    task: str = "strategies"
    models: str = ""
    strategies: str = ""
    batch_sizes: str = ""
    budget: str = ""
    cuda_graph: str = "false"
    backend: str = "cuda"
    rerun: str = str(Rerun.MISSING)
    time_limit_s: str = "3600"
    results: str = ""

    @property
    def folder(self) -> Path:
        """Where results go that nobody has named a place for: a GPU's are kept, a CPU's show that the command works."""
        kept = configuration.ROOT / ("results" if self.backend == "cuda" else "outputs")
        return Path(self.results) if self.results else kept / "measured"


@dataclass(frozen=True)
class Run:
    """One command's settings, where its results go, and how much memory there is (None: not known)."""

    settings: Settings
    records: Records
    directory: Path
    capacity_bytes: int | None

    def cell(self, model: str, batch_size: int, system: str) -> Record:
        return self.records.run(cell_of(self.settings, model, batch_size, system))

    def largest(self, model: str, system: str) -> Record:
        """Return the record of the largest batch that fits, or why there is none."""
        cell = cell_of(self.settings, model, LARGEST, system)
        return self.records.run(cell, capacity_bytes=self.capacity_bytes)


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    try:
        settings = parse(arguments)
        facts = device_facts_from_outside(settings.backend)
        budget_bytes = parse_bytes(settings.budget) if settings.budget else None
        directory = settings.folder / file_name(facts["device"])
        with Workers(float(settings.time_limit_s)) as workers:
            run = Run(
                settings,
                Records(directory / "records", announced(workers.run), Rerun(settings.rerun)),
                directory,
                capacity_bytes=budget_bytes or facts.get("device_memory_bytes"),
            )
            {"strategies": measure_strategies, "limits": measure_limits}[settings.task](run)
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130
    except (MembenchError, OSError) as error:
        print(f"membench.cli.measure: {complaint(error)}", file=sys.stderr)
        return 2
    return 0


def measure_strategies(run: Run) -> None:
    """Measure strategies and baselines side by side, model by model."""
    every = [*configuration.names("baseline"), *configuration.names("strategy")]
    for model in _list(run.settings.models) or MODELS:
        made = [
            (system, run.cell(model, batch_size, system))
            for batch_size in _batch_sizes(run, model)
            for system in _list(run.settings.strategies) or every
        ]
        write_csv(device_table("strategies", made), run.directory / f"strategies-{model}.csv")


def measure_limits(run: Run) -> None:
    """Look for the largest batch of each model and the greatest depth, under the budget."""
    systems = _list(run.settings.strategies) or LIMIT_STRATEGIES
    for model in _list(run.settings.models) or LIMIT_MODELS:
        made = [(system, run.largest(model, system)) for system in systems]
        write_csv(device_table("largest batch", made), run.directory / f"limits-{model}.csv")
    deepest = [(system, _deepest(run, size, system)) for size in DEPTH_BATCH_SIZES for system in systems]
    write_csv(device_table("greatest depth", deepest), run.directory / "limits-depth.csv")


def _deepest(run: Run, batch_size: int, system: str) -> Record:
    """Return the record of the deepest network that fits, of the shallowest if none does, or of a cell that failed."""

    def record(position: int) -> Record:
        return run.cell(f"resnet{DEPTHS[position - 1]}", batch_size, system)

    try:
        return record(largest(lambda n: checked(record(n)).outcome is Outcome.OK, limit=len(DEPTHS)) or 1)
    except SearchError as error:
        return error.record


def _batch_sizes(run: Run, model: str) -> list[int]:
    """Return the batch sizes asked for, ``largest`` replaced by the one with which eager fills the card."""
    usual = str(configuration.read("model", model)["batch_size"])
    wanted = _list(run.settings.batch_sizes) or [usual, LARGEST]
    found = [
        run.largest(model, "eager").configuration["batch_size"] if size == LARGEST else int(size)
        for size in wanted
    ]
    return [size for size in dict.fromkeys(found) if size != LARGEST]


def cell_of(settings: Settings, model: str, batch_size: int | str, system: str) -> Configuration:
    """Return a cell's configuration, as Hydra would compose it."""
    backend = configuration.read("backend", settings.backend)
    if settings.backend == "cuda":
        backend["cuda_graph"] = settings.cuda_graph == "true"
    return {
        "model": configuration.read("model", model),
        "batch_size": batch_size,
        "strategy": _system(system),
        "framework": configuration.read("framework", "pytorch"),
        "device": None,
        "backend": backend,
        "seed": 0,
        "budget": settings.budget or None,
        "micro_batch": None,
    }


def parse(arguments: Sequence[str]) -> Settings:
    """Return the settings that the arguments name.

    Raises:
        MembenchError: an argument is no setting, or its value is none; lists what there is.
    """
    changes: dict[str, str] = {}
    known = list(asdict(Settings()))
    for argument in arguments:
        name, separator, value = argument.partition("=")
        if name not in known or not separator:
            raise MembenchError(f"{argument!r} is no setting; write one of {', '.join(known)} as name=value")
        changes[name] = value
    settings = Settings(**changes)
    for name, choices in (
        ("task", ("strategies", "limits")),
        ("backend", ("cpu", "cuda")),
        ("cuda_graph", ("true", "false")),
        ("rerun", tuple(Rerun)),
    ):
        choice(choices, name, getattr(settings, name))
    for model in _list(settings.models):
        configuration.read("model", model)
    for system in _list(settings.strategies):
        _system(system)
    for size in _list(settings.batch_sizes):
        if size != LARGEST and not (size.isdecimal() and int(size)):
            raise MembenchError(f"batch_sizes are positive numbers of images or {LARGEST!r}, not {size!r}")
    check_size("budget", settings.budget or None)
    if not POSITIVE.holds(number(settings.time_limit_s)):
        raise MembenchError(f"time_limit_s is a positive number of seconds, not {settings.time_limit_s!r}")
    return settings


def _system(name: str) -> dict[str, Any]:
    """Return the configuration of a strategy, or of a baseline in its place."""
    return configuration.read("baseline" if name in configuration.names("baseline") else "strategy", name)


def _list(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
