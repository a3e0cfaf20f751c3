"""Growth of capture, planning and simulation with depth, from ResNet-50 to ResNet-1517.

Layrub at batch 32; moDNN at batch 256 within 12 GB, where it also captures the micro-batches that it tries. Each
network in a process of its own. Prints seconds, microseconds per captured task and the process's memory: where the time
per task stays level, the whole is linear.

Then every strategy at batch 32, those that plan for a budget at a tight one: microseconds of CPU time per captured task
for planning, validation and simulation, each the median of three, and how they grow from ResNet-152 to ResNet-1001.
"""

import gc
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from membench.capture.capture import Captures
from membench.core.configuration import load, names
from membench.core.graph.schedule import RepeatedSchedule, Schedule
from membench.core.graph.task_graph import Mode, TaskGraph
from membench.core.units import GIB, KIB
from membench.cost.roofline import RooflineCost
from membench.planning.checking.validate import validate
from membench.steps.plan import StepPlanner
from membench.steps.simulated_step import simulated_step
from membench.strategies.base import Strategy
from membench.strategies.eager import Eager
from membench.strategies.layrub.strategy import LayrubHybrid
from membench.strategies.modnn.strategy import Modnn
from membench.sweep.cells.model import Model

DEPTHS = (50, 152, 302, 695, 1001, 1517)
DEPTHS_OF_ALL = (50, 152, 302, 1001)
GROWS_FROM, GROWS_TO = 152, 1001
REPETITIONS = 3
BUDGETS = {"modnn": 0.3, "mmcnn": 0.3, "vdnn_dyn": 0.5}
"""Of eager's peak, for the strategies that plan for a budget."""
STAGES = ("plan", "validate", "simulate")


def layrub(depth: int) -> str:
    return measure(LayrubHybrid(), "k40m", "caffe", None, depth, batch_size=32)


def modnn(depth: int) -> str:
    return measure(Modnn(), "k40_modnn", "modnn", 12 * GIB, depth, batch_size=256)


METHODS: dict[str, Callable[[int], str]] = {"layrub": layrub, "modnn": modnn}


def measure(
    strategy: Strategy, device: str, framework: str, budget_bytes: int | None, depth: int, batch_size: int
) -> str:
    profile, lowering = load("device", device), load("framework", framework)
    cost = RooflineCost(profile, lowering.efficiency)
    model = Model.named(f"resnet{depth}")
    captures = Captures(model.workload(batch_size, seed=0, device="meta"))
    capture_s = 0.0

    def graph_at(size: int) -> TaskGraph:
        nonlocal capture_s
        start_s = time.perf_counter()
        graph = captures.graph_at(size)
        capture_s += time.perf_counter() - start_s
        return lowering.lower(graph)

    start_s = time.perf_counter()
    parts = StepPlanner(graph_at, batch_size, strategy, cost).within(budget_bytes)
    planned_s = time.perf_counter()
    simulated_step(parts, cost)
    end_s = time.perf_counter()
    size = parts[0].schedule.graph.batch_size
    tasks = len(captures.graph_at(size).tasks)
    memory_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB / GIB
    return (
        f"{model.name:11s} {tasks:6d} tasks   {size:3d} images at a time   capture {capture_s:6.1f} s   "
        f"plan {planned_s - start_s - capture_s:5.1f} s   simulate {end_s - planned_s:4.1f} s   "
        f"together {end_s - start_s:6.1f} s   {(end_s - start_s) / tasks * 1e6:6.0f} us/task   {memory_gib:4.2f} GB"
    )


def all_strategies() -> dict[str, float]:
    """Print each strategy's stages at each depth; return a task's time at the greater depth over the less."""
    growth: dict[str, list[float]] = {stage: [] for stage in STAGES}
    graphs = {(depth, mode): captured(depth, mode) for depth in DEPTHS_OF_ALL for mode in Mode}
    title = "  ".join(f"{stage + ' at ' + '/'.join(map(str, DEPTHS_OF_ALL)):34s}" for stage in STAGES)
    print(f"{'us/task':15s}{title}", flush=True)
    for name in names("strategy"):
        strategy = load("strategy", name)
        mode = Mode.TRAINING if Mode.TRAINING in strategy.modes else Mode.INFERENCE
        at = {depth: stages_us(strategy, graphs[depth, mode], BUDGETS.get(name)) for depth in DEPTHS_OF_ALL}
        columns = []
        for number, stage in enumerate(STAGES):
            times = "".join(f"{at[depth][number]:6.0f}" for depth in DEPTHS_OF_ALL)
            grown = at[GROWS_TO][number] / at[GROWS_FROM][number]
            columns.append(f"{times}  ({grown:4.2f} x)")
            growth[stage].append(grown)
        print(f"{name:15s}{'  '.join(columns)}", flush=True)
    return {
        f"{stage}, {kind} of all strategies: a task's time at {GROWS_TO} layers over {GROWS_FROM}": of(values)
        for stage, values in growth.items()
        for kind, of in (("median", statistics.median), ("largest", max))
    }


def captured(depth: int, mode: Mode) -> TaskGraph:
    model = Model.named(f"resnet{depth}")
    if mode is Mode.INFERENCE:
        model = replace(model, loss=None)
    return Captures(model.workload(32, seed=0, device="meta")).graph_at(32)


def stages_us(strategy: Strategy, graph: TaskGraph, budget_share: float | None) -> list[float]:
    """Return the CPU time of each stage, in microseconds per task."""
    lowering = load("framework", "pytorch")
    cost = RooflineCost(load("device", "k40m"), lowering.efficiency)
    lowered = lowering.lower(graph)
    budget_bytes = None
    if budget_share is not None:
        budget_bytes = int(budget_share * Eager().schedule(lowered, cost, None).peak_bytes)
    made: list[Schedule] = []
    stages: tuple[Callable[[], object], ...] = (
        lambda: made.append(strategy.schedule(lowered, cost, budget_bytes)),
        lambda: validate(made[-1], budget_bytes=budget_bytes),
        lambda: simulated_step((RepeatedSchedule(made[-1]),), cost),
    )
    runs = [[cpu_time_s(stage) for stage in stages] for _ in range(REPETITIONS)]
    return [statistics.median(times_s) / len(graph.tasks) * 1e6 for times_s in zip(*runs, strict=True)]


def cpu_time_s(run: Callable[[], object]) -> float:
    gc.collect()
    start_s = time.process_time()
    run()
    return time.process_time() - start_s


def ratios() -> dict[str, float]:
    """Return how the time per task grows with depth, by stage, after a line for each depth of two methods."""
    for method in METHODS:
        print(method, flush=True)
        for depth in map(str, DEPTHS):
            subprocess.run([sys.executable, __file__, method, depth], check=True)
    print("all strategies", flush=True)
    return all_strategies()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        method, depth = sys.argv[1:]
        print(METHODS[method](int(depth)), flush=True)
    else:
        ratios()
