"""Sweep memory budgets on a device: which strategy is fastest in how much memory, and how far from optimal.

    membench frontier model=resnet50 device=k40m batch_size=32
    membench frontier model=gpt2_medium device=rtx3090 precision=amp_bf16 optimizer=adamw strategies=joint,dtr
    membench frontier                   experiments/frontiers.yaml, into results/frontiers, paper_figs/frontiers

Takes the options of `membench run` that describe the step, --config-dir FOLDER included; the framework is PyTorch. In
addition:

    strategies=a,b   by default every one that computes exactly what eager execution does, joint first
    budgets=8        from the least budget that the first strategy keeps to eager's peak
    workers=2        processes
    rerun=missing    or all: cells with a record in outputs/records/frontiers run again
    output=text      or json, csv, markdown: every point

Nothing runs on a device, so that joint keeps weights on the host wherever that is faster. Writes a table with a line
for each point, outputs/frontiers/<model>_<device>.csv, and a picture (.png). A budget that a strategy cannot keep is
not a point.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import yaml
from hydra import compose

from membench.cli.command_line import compose_step, words_of_one_step
from membench.cli.words import FLAG, NameIn, take_options
from membench.core import configuration
from membench.core.configuration import IS_INSTALLED, ROOT
from membench.core.errors import MembenchError
from membench.core.extras import require
from membench.core.files import shown
from membench.core.hardware.device import file_name
from membench.core.record import Configuration, Record
from membench.core.result import Output, print_answer
from membench.core.tables import write_rows
from membench.core.terminal import show
from membench.sweep.composition import cell_configuration, hydra_composition
from membench.sweep.processes.worker import Workers
from membench.sweep.results.listing import result
from membench.sweep.results.records import Records, Rerun

COMMITTED = ROOT / "experiments" / "frontiers.yaml"
OURS = "joint"
LEFT_OUT = {
    "auto": "chooses among the others",
    "best_fit": "eager execution in another allocator's memory",
    "by_module": "the user names its modules",
    "epmc": "rounds activations",
    "mmcnn": "schedules inference",
    "modnn": "works in micro-batches, of which batch norm takes other statistics",
    "network_wide": "holds more than eager execution",
    "pytorch": "plain PyTorch, which eager execution stands for",
    "serial_csr": "depends on the activations' densities",
    "vdnn_inference": "schedules inference",
}
"""Strategies that are left out by default, and why."""


@dataclass(frozen=True)
class Job:
    """A network on a device: the configuration of its eager step, and the results' path without suffix."""

    step: Configuration
    table: Path
    picture: Path


@dataclass(frozen=True)
class Options:
    """What is swept.

    Attributes:
        records: the folder of the cells' records.
        described: configurations of the strategies, by name.
        strategies: names; all but `LEFT_OUT` where none is given.
        budgets: how many for each strategy.
        workers: processes at a time.
    """

    jobs: Annotated[tuple[Job, ...], FLAG]
    records: Annotated[Path, FLAG]
    described: Annotated[dict[str, Configuration], FLAG]
    strategies: tuple[Annotated[str, NameIn(("strategy",))], ...] = ()
    budgets: int = 8
    workers: int = 2
    rerun: Literal[Rerun.MISSING, Rerun.ALL] = Rerun.MISSING
    output: Output = Output.TEXT


def parse(words: Sequence[str]) -> Options:
    """Return the options that the words are."""
    own, words = words_of_one_step(words, "name one model and one device, or none for the committed frontiers")
    options, described = take_options(words, Options, own)
    known = [name for name in configuration.names("strategy", own) if name not in LEFT_OUT]
    require("figures", "the picture of a frontier")
    names = options.pop("strategies", None) or sorted(known, key=lambda name: name != OURS)
    return Options(
        jobs=(_job(described, own),) if described else tuple(_committed()),
        records=(Path() if described else ROOT) / "outputs" / "records" / "frontiers",
        described={name: configuration.read("strategy", name, own) for name in names},
        **options,
    )


def _job(words: Sequence[str], own: Path | None) -> Job:
    given = {word.partition("=")[0] for word in words}
    if missing := {"model", "device"} - given:
        raise MembenchError(
            f"name the {' and the '.join(sorted(missing))}, as in: membench frontier model=resnet50 device=k40m"
        )
    folder = Path("outputs") / "frontiers"
    composed = compose_step("frontier", words, own, {"framework": "pytorch", "strategy": "eager"})
    return _written_to(cell_configuration(composed), folder, folder)


def _committed() -> Iterator[Job]:
    """Yield the networks and devices of `COMMITTED`."""
    if IS_INSTALLED:
        raise MembenchError(
            "name a model and a device; the committed frontiers are not installed, but made in a checkout"
        )
    with hydra_composition():
        for model, batch_sizes in yaml.safe_load(COMMITTED.read_text())["batch_sizes"].items():
            for device, batch_size in batch_sizes.items():
                words = [f"model={model}", f"device={device}", f"batch_size={batch_size}"]
                step = cell_configuration(compose("config", [*words, "framework=pytorch", "strategy=eager"]))
                yield _written_to(step, ROOT / "results" / "frontiers", ROOT / "paper_figs" / "frontiers")


def _written_to(step: Configuration, tables: Path, pictures: Path) -> Job:
    name = file_name(f"{step['model']['name']}_{step['device']['name']}")
    return Job(step, tables / f"{name}.csv", pictures / f"{name}.png")


def run(options: Options) -> int:
    """Sweep each job, write its table and its picture, print what came out, and return the exit code."""
    # torch and matplotlib take seconds, which a wrong word need not wait for
    from membench.pictures.frontier import draw, save
    from membench.pictures.frontier_text import elements, rows
    from membench.sweep.frontier import Cells, sweep

    found = []
    for job in options.jobs:
        with Workers() as workers:
            records = Records(options.records, workers.run, options.rerun)
            with Cells(workers, records, job.step, options.workers) as cells:
                frontier, made = sweep(job.step, options.described, options.budgets, cells, _title(job.step))
        write_rows(rows(frontier), job.table)
        save(draw(frontier), job.picture)
        found.append(frontier)
        if options.output is Output.TEXT:
            show([*elements(frontier), *_failures(made), shown(job.table), shown(job.picture)])
    if options.output is not Output.TEXT:
        print_answer(
            options.output,
            chain.from_iterable(map(elements, found)),
            [frontier.to_dict() for frontier in found],
            [{"step": frontier.title, **row} for frontier in found for row in rows(frontier)],
        )
    return 0


def _title(step: Configuration) -> str:
    """Return the step in words."""
    optimizer, precision = step.get("optimizer"), step.get("precision")
    words = [
        step["model"]["name"],
        f"batch {step['batch_size']}",
        *([precision] if precision else []),
        *([optimizer["name"]] if optimizer else []),
        f"simulated on {step['device']['name']}",
    ]
    return ", ".join(words)


def _failures(records: Sequence[Record]) -> list[str]:
    """Return a line for each cell that failed for another reason than its budget."""
    return [f"  {result(record)}" for record in records if record.outcome.is_failure]
