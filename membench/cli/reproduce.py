"""`python -m membench.cli.reproduce layrub`: run a paper's experiments, and write tables, scoreboard and figures.

experiments/<paper> -> cells -> records -> results/<paper>/*.csv, SCOREBOARD.md -> paper_figs/<paper>
"""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose

from membench.cli.command_line import EXPLAINED, explain, parse_changes
from membench.cli.option_values import check_running
from membench.cli.trainings import compose_trainings, find_trainings
from membench.core.checks import COUNT, check
from membench.core.configuration import ROOT
from membench.core.device import file_name
from membench.core.errors import MembenchError
from membench.core.record import Configuration, Record
from membench.papers.cells import compose_cells, hydra_composition, resolved
from membench.papers.experiment import Cell, Paper
from membench.papers.loader import known_papers, load_paper
from membench.papers.measured_columns import gpu_at_hand, measure_on_gpu
from membench.papers.results import evaluate_all, needed_cells, write_results
from membench.papers.scoreboard import Score, scoreboard, summarize
from membench.papers.tables import MeasuredValues
from membench.sweep.listing import INTERRUPTED, announced, has_failed, plan, totals
from membench.sweep.records import Records, Rerun
from membench.sweep.runner import run_all
from membench.sweep.tracking import Sweep, Tracking, log_sweep
from membench.sweep.worker import Workers

FIGURES = ROOT / "paper_figs"
RECORDS = ROOT / "outputs" / "records" / "simulated"
MEASURED = ROOT / "results" / "measured"

USUAL_LAYERS = 20
"""Of a model whose depth the paper's vocabulary does not give; only orders the jobs."""


def reproduce(
    paper: Paper,
    cells: Mapping[Cell, Configuration],
    run: Callable[[Configuration], Record],
    *,
    workers: int,
    results: Path,
    stop: Callable[[], None],
) -> tuple[dict[Cell, Record], list[Score]]:
    """Run every cell that a paper's rows need and write its tables and its scoreboard.

    Args:
        run, workers, stop: see `run_all`.
    """
    layers = {model["configuration"]: model.get("layers", USUAL_LAYERS) for model in paper.models.values()}
    made = run_all(
        list(cells.values()),
        run,
        workers=workers,
        size=lambda configuration: layers[configuration["model"]["name"]],
        stop=stop,
    )
    records = dict(zip(cells, made, strict=True))
    trainings = find_trainings(compose_trainings(paper.trainings), results / paper.name)
    return records, write_results(paper, evaluate_all(paper, records, trainings), results)


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    try:
        settings = _settings(arguments)
        return _run(load_paper(ROOT / "experiments" / settings["paper"]), settings)
    except EXPLAINED as error:
        print(explain(error), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130


def _run(paper: Paper, settings: dict[str, Any]) -> int:
    cells = compose_cells(paper, needed_cells(paper))
    rerun = Rerun(settings["rerun"])
    with Workers(settings["time_limit_s"]) as workers:
        known = Records(RECORDS, workers.run, rerun)
        if settings["dry_run"]:
            print(plan([(known, list(cells.values()))]))
            return 0
        if gpu := gpu_at_hand():
            folder = MEASURED / file_name(gpu["device"])
            measure_on_gpu(paper, cells, Records(folder / "records", announced(workers.run), rerun), folder)
        records, scores = reproduce(
            paper,
            cells,
            known.run,
            workers=settings["workers"],
            results=ROOT / "results",
            stop=workers.close,
        )
    made = list({record.configuration_hash: record for record in records.values()}.values())
    drawn = _draw(paper.name)
    run = log_sweep(
        Tracking(**settings["tracking"]),
        Sweep(
            name=f"reproduce {paper.name}",
            group=f"reproduce-{paper.name}",
            tags=[f"paper:{paper.name}", *(f"device:{name}" for name in sorted(set(paper.devices.values())))],
            configuration=settings,
            summary={
                **vars(summarize(entry.verdict for entry in scores)),
                "calibrated": sum(entry.calibrated for entry in scores),
            },
            rows=scoreboard(scores, MeasuredValues(MEASURED)),
            files={
                paper.name: ROOT / "results" / paper.name,
                "SCOREBOARD.md": ROOT / "results" / "SCOREBOARD.md",
            },
            records=made,
        ),
    )
    print(closing_summary(paper, made, scores, run))
    return drawn or int(settings["strict"] and has_failed(made))


def _draw(paper: str) -> int:
    """Draw a paper's figures, if it has scripts for some; return the exit code."""
    if not (FIGURES / paper).is_dir():
        return 0
    return subprocess.run([sys.executable, "-m", FIGURES.name, paper], cwd=ROOT, check=False).returncode


def closing_summary(
    paper: Paper, records: Sequence[Record], scores: Sequence[Score], run: Path | None
) -> str:
    """Return what came out, and where to look."""
    predicted = summarize(entry.verdict for entry in scores if not entry.calibrated)
    fitted = sum(entry.calibrated for entry in scores)
    lines = [
        "",
        totals(records),
        f"{paper.name}: {predicted.agree} of {predicted.judged} predicted numbers reproduced, "
        f"{predicted.deviate} deviate, {predicted.not_run} not run",
        f"  (besides: {fitted} rows on which the model was fitted, {predicted.inputs} inputs)",
        "  at a glance  results/SCOREBOARD.md",
        f"  every row    results/{paper.name}/scoreboard.csv",
        *([f"  figures      paper_figs/{paper.name}/"] if (FIGURES / paper.name).is_dir() else []),
        *([f"  W&B run      {run}"] if run else []),
    ]
    return "\n".join(lines)


def _settings(arguments: Sequence[str]) -> dict[str, Any]:
    """Return `conf/reproduce.yaml` with the command line's changes; the first bare word is the paper."""
    known = known_papers(ROOT / "experiments")
    papers = [word for word in arguments if "=" not in word]
    if len(papers) > 1:
        raise MembenchError(f"name one paper, not {len(papers)}: {', '.join(papers)}")
    overrides = [word for word in arguments if "=" in word] + [f"paper={word}" for word in papers]
    parse_changes(overrides)
    with hydra_composition():
        settings = resolved(compose("reproduce", overrides))
    if settings["paper"] not in known:
        asked = "name a paper" if settings["paper"] == "???" else f"there is no paper {settings['paper']!r}"
        raise MembenchError(f"{asked}; there are: {', '.join(known)}")
    check(COUNT, workers=settings["workers"])
    check_running(settings)
    return settings


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
