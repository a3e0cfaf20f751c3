"""Joint over compiled kernels against joint over eager ones, at equal budgets: step times.

    python benchmarks/compiled.py                                one network on one device
    python benchmarks/compiled.py --all --results FOLDER         eight networks on two devices: half an hour

Devices are simulated; budgets are shares of what eager execution of eager kernels holds. Prints a line for each;
`--results` adds them to FOLDER/rows.csv as soon as they are made, goes on where an earlier run ended, and writes
FOLDER/README.md.
"""

import argparse
import csv
import time
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from statistics import geometric_mean

from membench.capture.capture import Captures
from membench.core.configuration import load
from membench.core.errors import InfeasibleSchedule
from membench.core.files import write_whole
from membench.core.graph.task_graph import TaskGraph
from membench.core.step.kernels import WHOLE_STEP
from membench.cost.roofline import RooflineCost
from membench.execution.simulation import step_time_s
from membench.steps.plan import plan
from membench.steps.predicted.fused_graphs import step_graphs
from membench.strategies.base import find_strategy
from membench.sweep.cells.model import Model

NETWORKS = {
    "resnet50": 32, "vgg16": 32, "densenet121": 32, "googlenet": 64, "unet": 8, "mobilenet_v2": 32, "vit_b_16": 32,
    "gpt2_medium": 2,
}  # fmt: skip
"""Batch sizes."""
DEVICES = ("rtx3090", "a100_40gb")
SHARES = (1.0, 0.8, 0.6, 0.45)
COLUMNS = ("network", "device", "share", "budget_bytes", "eager_s", "compiled_s", "planning_s")
PAGE = """# `joint` over compiled kernels

Made by `python benchmarks/compiled.py --all --results results/compiled`; every row is in `rows.csv`. Simulated: step
times of training in single precision under `joint`, with the kernels that `torch.compile` makes over those of eager
PyTorch, at budgets of 100, 80, 60 and 45 % of what eager PyTorch holds. Below 1 the compiled step is faster.
Convolutions round to TF32, PyTorch's default, for which its eager kernels change layouts back and forth, while compiled
steps keep channels last.

| network | budgets | geometric mean | largest | kept by compiled kernels alone | by eager ones alone |
|---|---:|---:|---:|---:|---:|
"""

Row = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    cells = product(NETWORKS, DEVICES) if arguments.all else [("resnet50", DEVICES[0])]
    rows = _read(arguments.results)
    done = {(row["network"], row["device"]) for row in rows}
    for network, device in cells:
        if (network, device) in done:
            continue
        for row in compared(network, device):
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
            rows.append(row)
        if arguments.results:
            _write(arguments.results, rows)
    for line in summary(rows):
        print(line)


def ratios() -> dict[str, float]:
    """Return the geometric mean of `joint`'s time with compiled kernels over that with eager ones."""
    rows = list(compared("resnet50", DEVICES[0]))
    print(*summary(rows), sep="\n", flush=True)
    return {f"compiled over eager kernels under joint, resnet50 on {DEVICES[0]}": geometric_mean(_ratios(rows))}


def compared(network: str, device: str) -> Iterator[Row]:
    """Yield the step times of `joint` with both kinds of kernels, for each budget; empty where it cannot be kept."""
    framework = load("framework", "pytorch")
    cost = RooflineCost(load("device", device), framework.efficiency, load("machine", "server"))
    size = NETWORKS[network]
    captures = Captures(
        Model.named(network).workload(size, seed=0, device="meta"), framework.captured_on, uses_values=True
    )
    eager, compiled = (step_graphs(captures, parts).graph_at(size) for parts in (None, WHOLE_STEP))
    whole_bytes = plan(eager, find_strategy("eager")(), cost, None).peak_bytes

    def joint_s(graph: TaskGraph, budget_bytes: int) -> str:
        try:
            return f"{step_time_s(plan(graph, find_strategy('joint')(), cost, budget_bytes), cost):.6g}"
        except InfeasibleSchedule:
            return ""

    for share in SHARES:
        start_s, budget_bytes = time.process_time(), int(share * whole_bytes)
        times = [joint_s(graph, budget_bytes) for graph in (eager, compiled)]
        values = (network, device, share, budget_bytes, *times, f"{time.process_time() - start_s:.1f}")
        yield dict(zip(COLUMNS, map(str, values), strict=True))


def summary(rows: Iterable[Row]) -> list[str]:
    """Return a line of a table for each network, and one for all."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        for name in (row["network"], "all"):
            found.setdefault(name, []).append(row)
    return [_line(name, found[name]) for name in (*(each for each in found if each != "all"), "all")]


def _line(name: str, rows: list[Row]) -> str:
    found = _ratios(rows)
    alone = [sum(bool(row[one]) and not row[other] for row in rows) for one, other in _BOTH_WAYS]
    mean, largest = (f"{each:.3f}" for each in (geometric_mean(found), max(found)))
    return f"| {name} | {len(found)} | {mean} | {largest} | {alone[0]} | {alone[1]} |"


def _ratios(rows: Iterable[Row]) -> list[float]:
    return [float(row["compiled_s"]) / float(row["eager_s"]) for row in rows if row["compiled_s"] and row["eager_s"]]


_BOTH_WAYS = (("compiled_s", "eager_s"), ("eager_s", "compiled_s"))


def _read(folder: Path | None) -> list[Row]:
    path = folder and folder / "rows.csv"
    if not path or not path.exists():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def _write(folder: Path, rows: list[Row]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [",".join(COLUMNS), *(",".join(row.values()) for row in rows)]
    write_whole(folder / "rows.csv", "\n".join(lines) + "\n")
    done = {(row["network"], row["device"]) for row in rows}
    missing = [
        f"{network} on {device}" for network, device in product(NETWORKS, DEVICES) if (network, device) not in done
    ]
    left = f"\nNot run yet: {', '.join(missing)}.\n" if missing else ""
    write_whole(folder / "README.md", PAGE + "\n".join(summary(rows)) + "\n" + left)


if __name__ == "__main__":
    main()
