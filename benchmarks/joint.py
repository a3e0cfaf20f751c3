"""Joint against other methods at their own peaks and at equal budgets: step times, gaps to the bound, planning.

    python benchmarks/joint.py                                one network on one device
    python benchmarks/joint.py --networks all --devices all   ten networks, three of which are in no configuration here,
                                                              on three devices: half an hour
    python benchmarks/joint.py --networks unet,vgg16 --results FOLDER --workers 2

Devices are simulated. Prints a line for each network, device, budget and method, and a summary. `--results` adds each
line to FOLDER/rows.jsonl as soon as its network and device are done, goes on where an earlier run ended, and writes
FOLDER/README.md, tables of all rows there. `results/joint` holds those of all networks and devices.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import geometric_mean, median

from membench.capture.capture import Captures
from membench.core.configuration import load
from membench.core.errors import InfeasibleSchedule, MembenchError
from membench.core.files import write_whole
from membench.core.graph.schedule import Schedule
from membench.core.graph.task_graph import TaskGraph
from membench.core.units import MIB
from membench.cost.roofline import RooflineCost
from membench.execution.simulation import step_time_s
from membench.models.timm_networks import options_of
from membench.steps.plan import plan
from membench.strategies.base import Strategy, find_strategy
from membench.strategies.eager import Eager
from membench.strategies.joint.strategy import Joint
from membench.sweep.cells.model import Model

AT_THEIR_PEAKS = ("memonger", "superneurons", "layrub_inter", "layrub_hybrid", "vdnn_all", "geeps")
AT_EQUAL_BUDGETS = ("rotor", "pofo", "capuchin", "dtr")
SHARES = (0.8, 0.6, 0.45)
"""Of eager's peak: the equal budgets."""
DEVICES = ("k40m", "rtx3090", "a100_40gb")
NETWORKS = {
    "resnet50": 32, "vgg16": 32, "densenet121": 32, "googlenet": 64, "unet": 8, "vit_b_16": 32, "gpt2_medium": 2,
    "timm/regnety_032": 32, "timm/hrnet_w18": 32, "timm/pvt_v2_b2": 32,
}  # fmt: skip
"""Batch sizes."""
OTHERS_BATCH_SIZE = 32
LARGE_GAP = 0.15
PAGE = """# `joint` against other methods

Made by `python benchmarks/joint.py --networks all --devices all --results results/joint` on simulated cards, whose
machine is `conf/machine/server.yaml`; every row is in `rows.jsonl`. *At their peaks*: `joint` with the peak of
memonger, superneurons, layrub_inter, layrub_hybrid, vdnn_all and geeps as its budget, its step time over theirs, the
geometric mean and the largest. *At equal budgets*: 80, 60 and 45 % of eager's peak, against rotor, pofo, capuchin and
dtr, where both keep the budget. *Only joint*: where `joint` alone keeps it; *only other*: where `joint` refuses what
the other keeps. The gap is that to `joint`'s lower bound. Planning is CPU time, that of the longest plan.
"""
TABLE = """
| network | plans | at their peaks: mean | largest | at equal budgets: mean | largest | only joint \
| only other | gap: median | worst | above 15 % | planning |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|
"""


@dataclass(frozen=True)
class Row:
    """Joint and another method within one budget.

    Attributes:
        share: the budget, in eager's peaks; None: the other method's peak without a budget.
        other_s: seconds of the other method's step; None: it cannot keep the budget. `joint_s`: of joint's.
        other_planning_s: seconds of CPU time to plan and validate; `joint_planning_s`: of joint's plan.
    """

    network: str
    batch_size: int
    device: str
    eager_s: float
    eager_bytes: int
    other: str
    share: float | None
    budget_bytes: int
    other_s: float | None
    other_planning_s: float
    joint_s: float | None
    joint_planning_s: float
    lower_bound_s: float | None
    gap: float | None

    @property
    def ratio(self) -> float | None:
        """Joint's time in the other's."""
        return self.joint_s / self.other_s if self.joint_s and self.other_s else None

    @property
    def is_lost(self) -> bool:
        """Whether the other method keeps a budget that joint refuses."""
        return self.other_s is not None and self.joint_s is None

    def __str__(self) -> str:
        at = "its peak" if self.share is None else f"{self.share:.0%}"
        return (
            f"{self.network:17s} {self.device:10s} {self.other:14s} {at:9s}{self.budget_bytes / MIB:7.0f} MiB   "
            f"eager {_ms(self.eager_s)}   {self.other} {_ms(self.other_s)}   joint {_ms(self.joint_s)}   "
            f"ratio {'-' if self.ratio is None else format(self.ratio, '.4f'):6s}   "
            f"gap {'-' if self.gap is None else format(self.gap, '.2%'):6s}   planned in {self.joint_planning_s:5.1f} "
            f"s "
            f"({self.other} {self.other_planning_s:.1f} s)"
        )


def rows_of(network: str, device: str) -> Iterator[Row]:
    """Yield the rows of a network on a device."""
    framework = load("framework", "pytorch")
    cost = RooflineCost(load("device", device), framework.efficiency, load("machine", "server"))
    batch_size = NETWORKS.get(network, OTHERS_BATCH_SIZE)
    graph = framework.lower(captured(network, batch_size))
    _, eager, _ = planned(graph, Eager(), cost, None)
    assert eager is not None, "it takes no budget"
    eager_s = step_time_s(eager, cost)
    plans: dict[int, tuple[float, Schedule | None, float | None]] = {}

    def row(other: str, share: float | None) -> Row | None:
        budget_bytes = None if share is None else int(share * eager.peak_bytes)
        other_planning_s, schedule, other_s = planned(graph, find_strategy(other)(), cost, budget_bytes)
        if budget_bytes is None:
            if schedule is None:
                return None  # it cannot schedule this network
            budget_bytes = schedule.peak_bytes
        if budget_bytes not in plans:
            plans[budget_bytes] = planned(graph, Joint(), cost, budget_bytes)
        joint_planning_s, joint, joint_s = plans[budget_bytes]
        found = dict(joint.decisions) if joint else {}
        return Row(
            network=network,
            batch_size=batch_size,
            device=device,
            eager_s=eager_s,
            eager_bytes=eager.peak_bytes,
            other=other,
            share=share,
            budget_bytes=budget_bytes,
            other_s=other_s,
            other_planning_s=other_planning_s,
            joint_s=joint_s,
            joint_planning_s=joint_planning_s,
            lower_bound_s=found.get("lower_bound_s"),
            gap=found.get("gap"),
        )

    pairs = [(other, None) for other in AT_THEIR_PEAKS] + list(product(AT_EQUAL_BUDGETS, SHARES))
    yield from filter(None, (row(other, share) for other, share in pairs))


def captured(network: str, batch_size: int) -> TaskGraph:
    library, _, name = network.rpartition("/")
    model = Model.from_configuration(options_of(name)) if library == "timm" else Model.named(name)
    return Captures(model.workload(batch_size, seed=0, device="meta")).graph_at(batch_size)


def planned(
    graph: TaskGraph, strategy: Strategy, cost: RooflineCost, budget_bytes: int | None
) -> tuple[float, Schedule | None, float | None]:
    """Return seconds of CPU time to plan and validate, the schedule, and its seconds; None where it is refused."""
    start_s = time.process_time()
    try:
        schedule = plan(graph, strategy, cost, budget_bytes)
    except InfeasibleSchedule:
        return time.process_time() - start_s, None, None
    return time.process_time() - start_s, schedule, step_time_s(schedule, cost)


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield lines: ratios by kind of budget, gaps and seconds of joint's plans, and refusals."""
    for title, chosen in (
        ("at the peaks of the papers' methods", [row for row in rows if row.share is None]),
        ("at equal budgets", [row for row in rows if row.share is not None]),
    ):
        ratios = [row.ratio for row in chosen if row.ratio is not None]
        if ratios:
            mean, largest = geometric_mean(ratios), max(ratios)
            yield f"{title}: {len(ratios)} ratios, geometric mean {mean:.3f}, largest {largest:.6f}"
        refused, lost = sum(row.other_s is None for row in chosen), sum(row.is_lost for row in chosen)
        yield f"{title}: the others refuse {refused} of {len(chosen)}, joint alone {lost}"
    plans = {(row.network, row.device, row.budget_bytes): row for row in rows}.values()
    if gaps := [row.gap for row in plans if row.gap is not None]:
        yield f"gaps to the lower bound of {len(gaps)} plans: median {median(gaps):.2%}, worst {max(gaps):.2%}"
    if seconds := [row.joint_planning_s for row in plans]:
        yield f"planning: median {median(seconds):.1f} s, longest {max(seconds):.1f} s of CPU time"


def main(arguments: argparse.Namespace) -> None:
    file = arguments.results / "rows.jsonl" if arguments.results else None
    rows = [Row(**json.loads(line)) for line in file.read_text().splitlines()] if file and file.exists() else []
    done = {(row.network, row.device) for row in rows}
    cells = [cell for cell in product(arguments.networks, arguments.devices) if cell not in done]
    if cells:
        with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
            for found in pool.map(_cell, *zip(*cells, strict=True)):
                print(*found, sep="\n", flush=True)
                rows += found
                if file:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    with file.open("a") as opened:
                        opened.writelines(json.dumps(asdict(row)) + "\n" for row in found)
    print(*summary(rows), sep="\n")
    if file:
        write_whole(file.parent / "README.md", page(rows))


def ratios() -> dict[str, float]:
    """Return the geometric means of `joint`'s time over the others', for both kinds of budgets."""
    network, device = "resnet50", "k40m"
    rows = list(rows_of(network, device))
    print(*rows, *summary(rows), sep="\n", flush=True)
    return {
        f"joint's time over that of others at {name}, {network} on {device}": geometric_mean(
            [row.ratio for row in rows if row.ratio is not None and (row.share is None) == at_their_peaks]
        )
        for name, at_their_peaks in (("their peaks", True), ("equal budgets", False))
    }


def page(rows: Sequence[Row]) -> str:
    """Return Markdown tables of ratios and gaps by network."""
    networks = dict.fromkeys(row.network for row in rows)
    lines = [_line(name, [row for row in rows if row.network == name]) for name in networks]
    found = PAGE + TABLE + "\n".join([*lines, _line("all", rows)]) + "\n"
    done = {(row.network, row.device) for row in rows}
    if missing := [f"{a} on {b}" for a, b in product(NETWORKS, DEVICES) if (a, b) not in done]:
        found += f"\nNot run yet: {', '.join(missing)}.\n"
    return found


def _line(name: str, rows: Sequence[Row]) -> str:
    plans = {(row.network, row.device, row.budget_bytes): row for row in rows}.values()
    gaps = [row.gap for row in plans if row.gap is not None]
    equal = [row for row in rows if row.share is not None]
    cells = [name, str(len(plans))]
    for chosen in ([row for row in rows if row.share is None], equal):
        ratios = [row.ratio for row in chosen if row.ratio is not None]
        cells += [f"{geometric_mean(ratios):.3f}", f"{max(ratios):.3f}"]
    cells += [str(sum(row.other_s is None and row.joint_s is not None for row in equal))]
    cells += [str(sum(row.is_lost for row in rows)), f"{median(gaps):.1%}", f"{max(gaps):.1%}"]
    cells += [str(sum(gap > LARGE_GAP for gap in gaps)), f"{max(row.joint_planning_s for row in plans):.1f} s"]
    return f"| {' | '.join(cells)} |"


def _cell(network: str, device: str) -> list[Row]:
    try:
        return list(rows_of(network, device))
    except MembenchError as error:
        raise SystemExit(f"{network} on {device}: {error}") from None


def _ms(time_s: float | None) -> str:
    return "refused " if time_s is None else f"{time_s * 1e3:7.1f} ms"


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    return lambda text: list(known) if text == "all" else text.split(",")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=_names(NETWORKS), default="resnet50")
    parser.add_argument("--devices", type=_names(DEVICES), default="k40m")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    main(parser.parse_args())
