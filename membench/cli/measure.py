"""Measure every strategy on the GPU at hand, where neither Hydra nor W&B needs to be installed.

    membench measure                             all of MODELS, at the model's batch size and at one that fills the card
    membench measure models=resnet50 strategies=eager,layrub_hybrid batch_sizes=32,largest
    membench measure task=limits budget=12GB     largest batches and greatest depth under a cap on the memory
    membench measure models=gpt2 precision=amp_bf16
    membench measure cuda_graph=true models=resnet1001 strategies=eager batch_sizes=32

Lists are separated by commas. Each cell runs in a process of its own, for at most time_limit_s seconds. Its record goes
to <results>/<gpu>/records as soon as it exists; a cell that has one is not run again: rerun=missing|failed|all. The
tables <results>/<gpu>/<task>-<model>.csv, with the precision and the budget in the name where they are given, are made
of the records. results is results/measured, or with backend=cpu outputs/measured, which is not committed.
--config-dir FOLDER adds your own files to those of conf/, as in `membench run`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from membench.cli.words import FLAG, NameIn, read_options, read_size, refuse_flags, take_config_dir
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.graph.precision import Precision
from membench.core.hardware.device import file_name
from membench.core.record import LARGEST, Configuration, Outcome, Record
from membench.core.tables import write_rows
from membench.core.units import parse_bytes
from membench.sweep.largest_batch import SearchError, decided
from membench.sweep.limits import largest
from membench.sweep.processes.worker import Workers
from membench.sweep.results.device_table import device_table
from membench.sweep.results.listing import announced
from membench.sweep.results.provenance import device_facts_from_outside
from membench.sweep.results.records import Records, Rerun

MODELS = ("resnet50", "resnet152", "resnet1001", "vgg16", "wrn28_10", "alexnet")
LIMIT_MODELS = ("alexnet", "vgg16", "resnet34", "resnet50", "resnet56_cifar", "wrn28_10")
"""Those of Layrub's Table 7."""
DEPTHS = (50, 101, 152, 302, 695, 1001, 1172, 1304, 1517)
"""The ImageNet ResNets that the papers define, among which the deepest that fits is found."""
DEPTH_BATCH_SIZES = (32, 16)
SYSTEMS = ("baseline", "strategy")
"""Groups of what is measured."""
LIMIT_STRATEGIES = ("eager", "network_wide", "layrub_hybrid")


def _read_batch_size(_: str, text: str) -> int | str:
    if text != LARGEST and not (text.isdecimal() and int(text)):
        raise MembenchError(f"batch_sizes are positive numbers of images or {LARGEST!r}, not {text!r}")
    return text if text == LARGEST else int(text)


def _read_precision(_: str, text: str) -> Precision:
    return Precision.of_step(text)


@dataclass(frozen=True)
class Options:
    """Options of the command.

    Attributes:
        task: ``strategies``, side by side, or their ``limits``.
        models, strategies: names in `conf/`; empty for those that the task chooses.
        batch_sizes: numbers of images, or `LARGEST` for the one with which eager fills the card.
        precision: in which steps compute, see `Precision`; None: as the model is.
        budget: the most memory that a step may hold, as ``"12GB"``; also the capacity that limits are searched in.
        time_limit_s: time limit of each cell.
        results: the folder for records and tables; by default `folder` chooses.
        config_dir: a folder with files that add to those of `conf/`.
    """

    task: Literal["strategies", "limits"] = "strategies"
    models: tuple[Annotated[str, NameIn(("model",))], ...] = ()
    strategies: tuple[Annotated[str, NameIn(SYSTEMS)], ...] = ()
    batch_sizes: tuple[Annotated[int | str, _read_batch_size], ...] = ()
    budget: Annotated[str | None, read_size] = None
    precision: Annotated[Precision | None, _read_precision] = None
    cuda_graph: bool = False
    backend: Annotated[str, NameIn(("backend",), left_out=("simulated",))] = "cuda"
    rerun: Rerun = Rerun.MISSING
    time_limit_s: float = 3600.0
    results: Path | None = None
    config_dir: Annotated[Path | None, FLAG] = None

    @property
    def folder(self) -> Path:
        """The folder for results: a GPU's are committed; a CPU's only show that the command works."""
        kept = configuration.ROOT / ("outputs" if self.backend == "cpu" else "results")
        return self.results or kept / "measured"

    @property
    def suffix(self) -> str:
        """What a table's name says of the steps besides their model."""
        return "".join(f"-{given}" for given in (self.precision, self.budget) if given)


@dataclass(frozen=True)
class CellRunner:
    """Runs cells by model, batch size and system (a strategy or a baseline), or finds their records.

    Attributes:
        directory: where tables go.
        capacity_bytes: the memory that a cell may use; None if unknown.
    """

    options: Options
    records: Records
    directory: Path
    capacity_bytes: int | None

    def run(self, model: str, batch_size: int | str, system: str) -> Record:
        cell = cell_of(self.options, model, batch_size, system)
        return self.records.run(cell, capacity_bytes=self.capacity_bytes)

    def run_largest(self, model: str, system: str) -> Record:
        """Return the record of the largest batch that fits, or of the cell that shows why none does."""
        return self.run(model, LARGEST, system)


def parse(words: Sequence[str]) -> Options:
    """Return the options that the words are."""
    own, words = take_config_dir(words)
    refuse_flags(words)
    return Options(**read_options(words, Options, own), config_dir=own)


def run(options: Options) -> int:
    """Measure the options' task, and return the exit code."""
    facts = device_facts_from_outside(options.backend)
    directory = options.folder / file_name(facts["device"])
    capacity_bytes = parse_bytes(options.budget) if options.budget else facts.get("device_memory_bytes")
    with Workers(options.time_limit_s) as workers:
        records = Records(directory / "records", announced(workers.run), options.rerun)
        measure = measure_limits if options.task == "limits" else measure_strategies
        measure(CellRunner(options, records, directory, capacity_bytes))
    return 0


def measure_strategies(runner: CellRunner) -> None:
    """Measure strategies and baselines side by side, model by model."""
    for model in runner.options.models or MODELS:
        made = [
            (system, runner.run(model, batch_size, system))
            for batch_size in _batch_sizes(runner, model)
            for system in runner.options.strategies or NameIn(SYSTEMS).names(runner.options.config_dir)
        ]
        write_rows(
            device_table("strategies", made), runner.directory / f"strategies-{model}{runner.options.suffix}.csv"
        )


def measure_limits(runner: CellRunner) -> None:
    """Find the largest batch of each model and the greatest depth that fit."""
    systems = runner.options.strategies or LIMIT_STRATEGIES
    for model in runner.options.models or LIMIT_MODELS:
        made = [(system, runner.run_largest(model, system)) for system in systems]
        write_rows(device_table("largest batch", made), runner.directory / f"limits-{model}.csv")
    deepest = [(system, _deepest(runner, size, system)) for size in DEPTH_BATCH_SIZES for system in systems]
    write_rows(device_table("greatest depth", deepest), runner.directory / "limits-depth.csv")


def _deepest(runner: CellRunner, batch_size: int, system: str) -> Record:
    """Return the record of the deepest network that fits, of the shallowest if none does, or of a cell that failed."""

    def record(position: int) -> Record:
        return runner.run(f"resnet{DEPTHS[position - 1]}", batch_size, system)

    try:
        return record(largest(lambda n: decided(record(n)).outcome is Outcome.OK, limit=len(DEPTHS)) or 1)
    except SearchError as error:
        return error.record


def _batch_sizes(runner: CellRunner, model: str) -> list[int]:
    """Return the batch sizes to measure, `LARGEST` replaced by the one with which eager fills the card."""
    usual = configuration.read("model", model, runner.options.config_dir).get("batch_size", LARGEST)
    wanted = runner.options.batch_sizes or (usual, LARGEST)
    found = [
        runner.run_largest(model, "eager").configuration["batch_size"] if size == LARGEST else size for size in wanted
    ]
    return [size for size in dict.fromkeys(found) if isinstance(size, int)]


def cell_of(options: Options, model: str, batch_size: int | str, system: str) -> Configuration:
    """Return a cell's configuration, as Hydra would compose it."""
    own = options.config_dir
    group = "baseline" if system in configuration.names("baseline") else "strategy"
    switches = {"cuda_graph": options.cuda_graph} if options.backend == "cuda" else {}
    precision = {"precision": options.precision} if options.precision else {}
    return {
        "model": configuration.read("model", model, own),
        "batch_size": batch_size,
        "strategy": configuration.read(group, system, own),
        "framework": configuration.read("framework", "pytorch"),
        "device": None,
        "backend": configuration.read("backend", options.backend) | switches,
        "seed": 0,
        "budget": options.budget,
        "micro_batch": None,
        **precision,
    }
