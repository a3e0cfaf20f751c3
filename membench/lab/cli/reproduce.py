"""Reproduce a paper: run its experiments, and write its tables, scoreboard and figures.

    membench reproduce layrub
    membench reproduce layrub workers=4 rerun=failed dry_run=true
    membench reproduce vdnn sensitivity=true
    membench reproduce ../my_paper

Each experiment of experiments/<paper> becomes cells, and their records become results/<paper>/*.csv,
results/SCOREBOARD.md and paper_figs/<paper>. Where there is a GPU, the paper's networks are measured on it too. Its
cells are made of the files in conf/ alone. The results of a folder elsewhere are in that folder, without figures; those
of a paper that an installed package adds are in outputs/papers.
"""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

from membench.cli.command_line import compose_checked
from membench.cli.option_values import check_running
from membench.cli.words import refuse_flags, split
from membench.core.checks import COUNT, check, choice
from membench.core.configuration import ROOT
from membench.core.document import Table
from membench.core.errors import MembenchError
from membench.core.files import shown
from membench.core.hardware.device import file_name
from membench.core.record import Configuration, Record
from membench.core.result import Output, print_answer
from membench.core.tables import read_csv
from membench.core.terminal import show
from membench.lab.cli.trainings import compose_trainings, find_trainings
from membench.lab.papers.judging.closeness import Closeness, read_closeness
from membench.lab.papers.judging.numbers import PaperNumbers
from membench.lab.papers.judging.sensitivity import with_stated_rows_only
from membench.lab.papers.pages.measured_columns import gpu_at_hand, measure_on_gpu
from membench.lab.papers.pages.results import evaluate_all, judged, needed_cells, write_results, write_sensitivity
from membench.lab.papers.reading.cells import compose_cells
from membench.lab.papers.reading.experiment import Alternative, Paper, PaperCell
from membench.lab.papers.reading.loader import folder_of, known_papers, load_paper, results_of
from membench.lab.papers.reading.quantities import Result
from membench.sweep.composition import hydra_composition
from membench.sweep.processes.runner import run_all
from membench.sweep.processes.worker import Workers
from membench.sweep.results.listing import announced, has_failed, plan, totals
from membench.sweep.results.records import Records, Rerun
from membench.sweep.results.tracked import CELLS, Sweep, Tracking, cell_rows
from membench.sweep.results.tracking import check_tracking, log_sweep

EXPERIMENTS = ROOT / "experiments"
RESULTS = ROOT / "results"
FIGURES = ROOT / "paper_figs"
MEASURED = "measured"


@dataclass(frozen=True)
class Options:
    """The options of `conf/reproduce.yaml` and `conf/running.yaml`, which describe them; the paper is its folder."""

    paper: Path
    sensitivity: bool
    workers: int
    time_limit_s: float | None
    rerun: Rerun
    dry_run: bool
    strict: bool
    output: Output
    tracking: Tracking

    @property
    def is_here(self) -> bool:
        """Whether the paper is one of the repository."""
        return self.paper.parent == EXPERIMENTS

    @property
    def results(self) -> Path:
        """The folder for its results, and those of the papers beside it."""
        return results_of(self.paper, EXPERIMENTS, RESULTS)


def parse(words: Sequence[str]) -> Options:
    """Return `conf/reproduce.yaml` with the changes that the words are; the bare word is the paper."""
    refuse_flags(words, known=())
    papers, options = split(words)
    if len(papers) > 1:
        raise MembenchError(f"name one paper, not {len(papers)}: {', '.join(papers)}")
    with hydra_composition():
        values = compose_checked("reproduce", [*options, *(f'paper="{paper}"' for paper in papers)])
    if values["paper"] == "???":
        raise MembenchError(f"name a paper; there are: {', '.join(known_papers(EXPERIMENTS))}")
    values["paper"] = folder_of(values["paper"], EXPERIMENTS)
    check(COUNT, workers=values["workers"])
    check_running(values)
    values["output"] = choice(Output, "output", values["output"])
    typed = {"rerun": Rerun(values["rerun"]), "tracking": Tracking(**values["tracking"])}
    return Options(**values | typed)


def run(options: Options) -> int:
    """Reproduce the paper, or list its cells in a dry run, and return the exit code."""
    if options.output is Output.TEXT:
        return _run(options)
    with redirect_stdout(sys.stderr):
        code = _run(options)
    rows = [] if options.dry_run else read_csv(options.results / options.paper.name / "scoreboard.csv")
    print_answer(options.output, [Table.of(rows)], rows=rows)
    return code


def _run(options: Options) -> int:
    if not options.dry_run:
        check_tracking(options.tracking)
    paper, results = load_paper(options.paper), options.results
    cells = compose_cells(paper, needed_cells(paper))
    with Workers(options.time_limit_s) as workers:
        known = Records(ROOT / "outputs" / "records" / "simulated", workers.run, options.rerun)
        if options.dry_run:
            show(plan([(known, list(cells.values()))]))
            return 0
        if gpu := gpu_at_hand():
            folder = results / MEASURED / file_name(gpu["device"])
            measured = Records(folder / "records", announced(workers.run), options.rerun)
            measure_on_gpu(paper, cells, measured, folder)
        execution = Execution(known.run, options.workers, workers.close)
        records, numbers = reproduce(paper, cells, execution, results)
        if options.sensitivity:
            vary(options.paper, numbers, execution, results)
    drawn = _draw(paper.name, options.output) if options.is_here else 0
    logged = _log(options, cells, records, numbers)
    made = _distinct(records.values())
    show(closing_summary(made, numbers, read_closeness(results / paper.name), logged, options))
    return drawn or int(options.strict and has_failed(made))


Reading = tuple[Paper, Mapping[PaperCell, Configuration]]
"""A paper, as it is or under an alternative, and its cells."""


@dataclass(frozen=True)
class Execution:
    """How cells are run, see `run_all`."""

    run: Callable[[Configuration], Record]
    workers: int
    stop: Callable[[], None]

    def records(self, readings: Sequence[Reading]) -> list[dict[PaperCell, Record]]:
        """Run the cells of each reading of a paper, or take their records; equal cells run once."""
        # only orders the jobs; the paper's vocabulary lacks some depths, for which 20 is usual
        depths = {
            model.get("configuration"): model.get("layers", 20)
            for paper, _ in readings
            for model in paper.models.values()
        }
        made = run_all(
            [configuration for _, cells in readings for configuration in cells.values()],
            self.run,
            workers=self.workers,
            size=lambda cell: depths[cell["model"]["name"]],
            stop=self.stop,
        )
        found = iter(made)
        return [{cell: next(found) for cell in cells} for _, cells in readings]


def reproduce(
    paper: Paper, cells: Mapping[PaperCell, Configuration], execution: Execution, results: Path
) -> tuple[dict[PaperCell, Record], PaperNumbers]:
    """Run every cell that a paper's rows need, and write its tables and its scoreboard."""
    [records] = execution.records([(paper, cells)])
    return records, write_results(paper, _evaluated(paper, records, results), results)


def vary(folder: Path, numbers: PaperNumbers, execution: Execution, results: Path) -> None:
    """Run the paper in a folder under each alternative to its choices alone, and write what that changes."""
    paper = numbers.paper
    tried = [alternative for alternative in paper.alternatives if not alternative.not_run]
    papers = [with_stated_rows_only(load_paper(folder, each)) for each in tried]
    readings = [(each, compose_cells(each, needed_cells(each))) for each in papers]
    made = zip(papers, execution.records(readings), strict=True)
    varied: list[tuple[Alternative, PaperNumbers | None]] = []
    for alternative in paper.alternatives:
        if alternative.not_run:
            varied.append((alternative, None))
            continue
        read, records = next(made)
        evaluated = _evaluated(read, records, results)
        varied.append((alternative, judged(read, [each for found in evaluated.values() for each in found])))
    write_sensitivity(numbers, varied, results)


def _evaluated(paper: Paper, records: Mapping[PaperCell, Record], results: Path) -> dict[str, list[Result]]:
    trainings = find_trainings(compose_trainings(paper.trainings), results / paper.name)
    return evaluate_all(paper, records, trainings)


def _log(
    options: Options,
    cells: Mapping[PaperCell, Configuration],
    records: Mapping[PaperCell, Record],
    numbers: PaperNumbers,
) -> Path | None:
    """Log the reproduction to W&B, and return the run's folder if there is one."""
    paper = numbers.paper
    rows = cell_rows((configuration, records[cell]) for cell, configuration in cells.items())
    sweep = Sweep(
        name=f"reproduce {paper.name}",
        group=f"reproduce-{paper.name}",
        tags=[f"paper:{paper.name}", *(f"device:{name}" for name in sorted(set(paper.devices.values())))],
        configuration=asdict(options) | {"rerun": str(options.rerun), "paper": paper.name},
        summary=asdict(numbers.predicted) | {"fitted": numbers.fitted.judged, "held_out": numbers.held_out.judged},
        tables={
            "rows": read_csv(options.results / paper.name / "scoreboard.csv"),
            CELLS: [row | {"system": cell.system} for cell, row in zip(cells, rows, strict=True)],
        },
        files={name: options.results / name for name in (paper.name, "SCOREBOARD.md")},
        records=_distinct(records.values()),
        pictures={path.stem: path for path in sorted((FIGURES / paper.name).glob("*.png"))} if options.is_here else {},
    )
    return log_sweep(options.tracking, sweep)


def _distinct(records: Iterable[Record]) -> list[Record]:
    return list({record.configuration_hash: record for record in records}.values())


def _draw(paper: str, output: Output) -> int:
    """Draw a paper's figures and the overview of all papers, and return the exit code."""
    command = [sys.executable, "-m", "paper_figs", paper]
    stdout = None if output is Output.TEXT else subprocess.DEVNULL
    return subprocess.run(command, cwd=ROOT, check=False, stdout=stdout).returncode


def closing_summary(
    records: Sequence[Record], numbers: PaperNumbers, closeness: Closeness, run: Path | None, options: Options
) -> list[str]:
    """Return the outcome of a reproduction, and where its files are.

    Args:
        run: the folder of its W&B run, if there is one.
    """
    paper, predicted = numbers.paper, numbers.predicted
    return [
        "",
        *totals(records),
        f"{paper.name}: {predicted.agree} of {predicted.judged} predicted numbers reproduced, "
        f"{predicted.deviate} deviate, {predicted.not_run} not run",
        f"  of those reproduced, {predicted.on_choice} rest on a declared choice and {predicted.certain} cannot fail; "
        f"{predicted.distinct} values are distinct",
        *_of_pairs(closeness),
        f"  (in addition: {numbers.fitted.judged} rows on which the model was fitted, {numbers.held_out.judged} held "
        f"out, "
        f"{predicted.inputs} inputs)",
        f"  at a glance  {shown(options.results / 'SCOREBOARD.md')}",
        f"  every row    {shown(options.results / paper.name / 'scoreboard.csv')}",
        *([f"  figures      paper_figs/{paper.name}/"] if options.is_here else []),
        *([f"  W&B run      {run}"] if run else []),
    ]


def _of_pairs(closeness: Closeness) -> Iterator[str]:
    """Yield lines on the pairs whose order the paper states, and on how many of them are noise."""
    if closeness.pairs.pairs:
        yield f"  pairs ordered as in the paper: {closeness.two_counts}; by how far apart the paper's numbers are:"
        yield from (
            f"    {name:<22}{share:<20}{interval:>12}  {noise}".rstrip()
            for name, share, interval, noise in closeness.margins.rows
        )
