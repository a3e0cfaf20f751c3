"""How capture, planning and simulation grow with depth, from ResNet-50 to ResNet-1517.

Layrub at batch 32; moDNN at batch 256 within 12 GB, where it also captures the sub-batches that it looks at. Each network in
a process of its own. Prints seconds, microseconds per captured task and the process's memory: where the time per task stays
level, the whole is linear.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import yaml

from membench.capture.capture import Captures
from membench.configuration import CONF_DIRECTORY, load
from membench.cost.roofline import RooflineCost
from membench.simulated_step import simulated_step
from membench.step import plan_step
from membench.strategies.base import Strategy
from membench.strategies.layrub import LayrubHybrid
from membench.strategies.modnn import Modnn
from membench.suite.cell import workload_of
from membench.task_graph import TaskGraph
from membench.units import GIB, KIB

DEPTHS = (50, 152, 302, 695, 1001, 1517)


def layrub(depth: int) -> str:
    return measure(LayrubHybrid(), "k40m", "caffe", None, described(depth, batch_size=32))


def modnn(depth: int) -> str:
    return measure(Modnn(), "k40_modnn", "modnn", 12 * GIB, described(depth, batch_size=256))


METHODS: dict[str, Callable[[int], str]] = {"layrub": layrub, "modnn": modnn}


def described(depth: int, batch_size: int) -> dict[str, Any]:
    model = yaml.safe_load((CONF_DIRECTORY / "model" / f"resnet{depth}.yaml").read_text())
    return {"model": model, "batch_size": batch_size, "backend": {"name": "simulated"}, "seed": 0}


def measure(
    strategy: Strategy, device: str, framework: str, budget_bytes: int | None, configuration: dict[str, Any]
) -> str:
    profile, lowering = load("device", device), load("framework", framework)
    cost = RooflineCost(profile, lowering.efficiency)
    captures = Captures(workload_of(configuration))
    capture_s = 0.0

    def graph_at(size: int) -> TaskGraph:
        nonlocal capture_s
        start_s = time.perf_counter()
        graph = captures.graph_at(size)
        capture_s += time.perf_counter() - start_s
        return lowering.lower(graph)

    start_s = time.perf_counter()
    parts = plan_step(graph_at, configuration["batch_size"], strategy, cost, budget_bytes)
    planned_s = time.perf_counter()
    simulated_step(parts, cost)
    end_s = time.perf_counter()
    size = parts[0].schedule.graph.batch_size
    tasks = len(captures.graph_at(size).tasks)
    memory_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB / GIB
    return (
        f"{configuration['model']['name']:11s} {tasks:6d} tasks   {size:3d} images at a time   capture {capture_s:6.1f} s   "
        f"plan {planned_s - start_s - capture_s:5.1f} s   simulate {end_s - planned_s:4.1f} s   "
        f"together {end_s - start_s:6.1f} s   {(end_s - start_s) / tasks * 1e6:6.0f} us/task   {memory_gib:4.2f} GB"
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        method, depth = sys.argv[1:]
        print(METHODS[method](int(depth)), flush=True)
    else:
        for method in METHODS:
            print(method, flush=True)
            for depth in map(str, DEPTHS):
                subprocess.run([sys.executable, __file__, method, depth], check=True)
