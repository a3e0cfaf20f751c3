"""`python -m membench.reproduce layrub`: run a paper's experiments, and write tables, scoreboard and figures.

experiments/<paper> -> cells -> records -> results/<paper>/*.csv, SCOREBOARD.md -> paper_figs/<paper>
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.errors import HydraException
from omegaconf import OmegaConf

from membench.configuration import CONF_DIRECTORY
from membench.errors import MembenchError
from membench.experiment import Cell, Paper
from membench.record import Outcome, Record
from membench.report.results import evaluate_all, needed_cells, write_results
from membench.report.scoreboard import Score, scoreboard, summarize
from membench.report.tables import Measured
from membench.suite.command_line import explain
from membench.suite.composition import compose_cells, hydra_composition
from membench.suite.measured_paper import gpu_at_hand, measure_on_gpu
from membench.suite.papers import load_paper
from membench.suite.runner import Job, run_all, run_in_worker
from membench.suite.tracking import Tracking, log_sweep
from membench.suite.trainings import compose_trainings, find_trainings

ROOT = CONF_DIRECTORY.parent


USUAL_LAYERS = 20
"""Of a model whose depth the paper's vocabulary does not give; only orders the jobs."""


def reproduce(
    paper: Paper, *, workers: int, results: Path, run_job: Callable[[Job], list[Record]] = run_in_worker
) -> tuple[dict[Cell, Record], list[Score]]:
    """Run every cell that a paper's rows need and write its tables and its scoreboard."""
    configurations = compose_cells(paper, needed_cells(paper))
    layers = {model["configuration"]: model.get("layers", USUAL_LAYERS) for model in paper.models.values()}
    made = run_all(
        list(configurations.values()),
        workers=workers,
        size=lambda configuration: layers[configuration["model"]["name"]],
        run_job=run_job,
    )
    records = dict(zip(configurations, made, strict=True))
    trainings = find_trainings(compose_trainings(paper.trainings), results / paper.name)
    return records, write_results(paper, evaluate_all(paper, records, trainings), results)


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    try:
        settings = _settings(arguments)
        paper = load_paper(ROOT / "experiments" / settings["paper"])
    except (HydraException, MembenchError) as error:
        print(explain(error), file=sys.stderr)
        return 2
    if gpu := gpu_at_hand():
        measure_on_gpu(paper, compose_cells(paper, needed_cells(paper)), gpu, ROOT / "results" / "measured")
    records, scores = reproduce(paper, workers=settings["workers"], results=ROOT / "results")
    figures = subprocess.run([sys.executable, "-m", "paper_figs", paper.name], cwd=ROOT, check=False)
    run = log_sweep(
        Tracking(**settings["tracking"]),
        scoreboard(scores, Measured(ROOT / "results" / "measured")),
        name=f"reproduce {paper.name}",
        group=f"reproduce-{paper.name}",
        job_type="report",
        tags=[f"paper:{paper.name}", *(f"device:{name}" for name in sorted(set(paper.devices.values())))],
        configuration=settings,
        summary=vars(summarize(scores)),
    )
    print(closing_summary(paper, records, scores, run))
    return figures.returncode


def closing_summary(
    paper: Paper, records: dict[Cell, Record], scores: Sequence[Score], run: Path | None
) -> str:
    """Return what came out, and where to look."""
    predicted = summarize([entry for entry in scores if not entry.calibrated])
    total = summarize(scores)
    failures = [
        f"  {cell.model} by {cell.system}: {r.reason}" for cell, r in records.items() if _is_failure(r)
    ]
    lines = [
        "",
        f"{paper.name}: {predicted.agree} of {predicted.judged} predicted numbers reproduced, "
        f"{predicted.deviate} deviate, {total.not_run} not run",
        f"  (besides: {total.calibrated} rows on which the cost model was fitted, {total.inputs} inputs)",
        "  at a glance  results/SCOREBOARD.md",
        f"  every row    results/{paper.name}/scoreboard.csv",
        f"  figures      paper_figs/{paper.name}/",
        *([f"  W&B run      {run}"] if run else []),
        *([f"{len(failures)} cells failed:", *failures] if failures else []),
    ]
    return "\n".join(lines)


def _is_failure(record: Record) -> bool:
    return record.outcome in (Outcome.FAILED, Outcome.UNSUPPORTED)


def _settings(arguments: Sequence[str]) -> dict[str, Any]:
    """Return `conf/reproduce.yaml` with the command line's changes; the first bare word is the paper."""
    known = sorted(path.parent.name for path in (ROOT / "experiments").glob("*/paper.yaml"))
    overrides = [word if "=" in word else f"paper={word}" for word in arguments]
    with hydra_composition():
        settings = OmegaConf.to_container(compose("reproduce", overrides), resolve=True)
    assert isinstance(settings, dict)
    if settings["paper"] not in known:
        asked = "name a paper" if settings["paper"] == "???" else f"there is no paper {settings['paper']!r}"
        raise MembenchError(f"{asked}; there are: {', '.join(known)}")
    return {str(key): value for key, value in settings.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
