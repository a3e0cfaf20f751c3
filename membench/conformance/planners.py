"""Planners next to each other on a fixed suite: how far their steps are above the lower bound, and their planning time.

    suite of steps and budgets -> a file for each planner -> a page of all files

The bound is that of `membench.strategies.joint.bound`, which `joint` states for each budget, and so its file has.
Everything is simulated but for the seconds of planning, which are CPU time of the machine that recorded the file.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from membench.conformance.recorded_files import PLANNERS, Refused, read_recorded, write_recorded
from membench.core import configuration
from membench.core.document import Element, Table, as_markdown
from membench.core.errors import MembenchError
from membench.core.files import write_whole
from membench.core.record import Configuration

SUITE = (("alexnet", "k40m", 64), ("resnet18", "rtx3090", 32), ("unet", "a100_40gb", 8))
"""Network, card and samples of each step, without an optimizer, under PyTorch and in its own precision."""
_FIRST = ("digits_cnn", "k40m", 64)
SHARES = (0.8, 0.6)
"""Budgets, as parts of the peak of eager execution."""
_BOUND = "lower_bound_s"
_PAGE = """# Planners

Made by `membench bench page=results/planners` from the files beside it, of which
`membench bench record=FILE planner=NAME` records one. {count} points: {steps}, under {shares} of eager
execution's peak. Simulated. The gap is the step's time over the [lower bound](../../docs/frontier.md) that
`joint` states, less one. A planner that cannot keep a budget has no step there. Seconds of planning are CPU
time of the machine that recorded the file.

"""


def record(path: Path, planner: str) -> None:
    """Plan each point of the suite, and write the file of a planner.

    Args:
        planner: name of a strategy, of a package of one's own as well.

    Raises:
        MembenchError: there is no such strategy.
        OSError: the file cannot be written.
    """
    options = configuration.read("strategy", planner)
    list(_points(_FIRST, options))  # what is compiled at a first plan is not the time of one
    points = [point for step in SUITE for point in _points(step, options)]
    write_recorded(path, PLANNERS, {"planner": planner, "points": points})


def _points(step: tuple[str, str, int], options: Configuration) -> Iterator[dict[str, Any]]:
    from membench.sweep.cells.run import run_cells

    model, device, batch_size = step
    eager = _configuration(step)
    waiting: list[Configuration] = [eager]
    records = run_cells(iter(waiting.pop, None))  # neighbours share the capture, whose time is not one of planning
    peak_bytes = int(next(records).metrics["required_memory_bytes"])
    for share in SHARES:
        budget_bytes = int(share * peak_bytes)
        point = {"model": model, "device": device, "batch_size": batch_size, "budget_bytes": budget_bytes}
        waiting.append(eager | {"strategy": options, "budget": budget_bytes})
        start_s = time.process_time()
        found = next(records)
        point["planning_time_s"] = round(time.process_time() - start_s, 2)
        if "oracular_step_time_s" not in found.metrics:
            yield {**point, "reason": found.reason}
            continue
        point |= {
            "peak_bytes": int(found.metrics["required_memory_bytes"]),
            "step_time_s": found.metrics["oracular_step_time_s"],
        }
        bound_s = found.layer_metrics.get(_BOUND)
        yield point if bound_s is None else {**point, _BOUND: bound_s}


def _configuration(step: tuple[str, str, int]) -> Configuration:
    """Return the configuration of a step by eager execution."""
    from hydra import compose

    from membench.sweep.composition import cell_configuration, hydra_composition

    model, device, batch_size = step
    words = [f"model={model}", f"device={device}", f"batch_size={batch_size}", "framework=pytorch", "strategy=eager"]
    with hydra_composition():
        return cell_configuration(compose("config", words))


def complaints(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons for which a planner's file is refused, which is of its schema; none: it is accepted."""
    expected = [step for step in SUITE for _ in SHARES]
    if [(each["model"], each["device"], each["batch_size"]) for each in content["points"]] != expected:
        yield "its points are not those of the suite"
    for each in content["points"]:
        name = f"{each['model']} in {each['budget_bytes']:,} bytes"
        if each.get("peak_bytes", 0) > each["budget_bytes"]:
            yield f"{name}: the peak is above the budget"
        if each.get(_BOUND, 0) > each.get("step_time_s", 0):
            yield f"{name}: the step is faster than its bound"


def write_page(folder: Path) -> Path:
    """Write ``README.md`` from the files of planners in a folder, and return its path.

    Raises:
        MembenchError: a file is refused, or none has bounds.
        OSError: the page cannot be written.
    """
    files = [_accepted(path) for path in sorted(folder.glob("*.json"))]
    bounds = {_key(each): each[_BOUND] for content in files for each in content["points"] if _BOUND in each}
    if not bounds:
        raise MembenchError(f"no file in {folder} has bounds; record one of joint: planner=joint")
    steps = ", ".join(f"{model} with {batch_size} samples on {device}" for model, device, batch_size in SUITE)
    shares = " and ".join(map(str, SHARES))
    text = _PAGE.format(count=len(SUITE) * len(SHARES), steps=steps, shares=shares)
    page = folder / "README.md"
    write_whole(page, text + as_markdown(_elements(files, bounds)) + "\n")
    return page


def _accepted(path: Path) -> dict[str, Any]:
    try:
        name, content = read_recorded(path)
        reasons = list(complaints(content)) if name == PLANNERS else ["it is not of a planner"]
    except Refused as error:
        reasons = [str(error)]
    if reasons:
        raise MembenchError(f"{path}: {'; '.join(reasons)}")
    return content


def _elements(files: Sequence[Mapping[str, Any]], bounds: Mapping[Any, float]) -> Iterator[Element]:
    rows = []
    for content in files:
        points = content["points"]
        kept = [each for each in points if "step_time_s" in each]
        gaps = [max(0.0, each["step_time_s"] / bounds[_key(each)] - 1) for each in kept if _key(each) in bounds]
        shown = [f"{100 * gap:.1f} %" for gap in ([median(gaps), max(gaps)] if gaps else [])] or ["", ""]
        seconds = f"{sum(each['planning_time_s'] for each in points):.1f}"
        rows.append((not gaps, median(gaps or [0.0]), (content["planner"], f"{len(kept)}", *shown, seconds)))
    head = ("planner", "points kept", "gap, median", "gap, largest", "planning, seconds")
    yield Table((head, *(row for *_, row in sorted(rows))))


def _key(point: Mapping[str, Any]) -> tuple[str, str, int]:
    return point["model"], point["device"], point["budget_bytes"]
