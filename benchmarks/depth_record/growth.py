"""CPU seconds and memory to capture, plan, validate and simulate ResNets of 1,001 to 10,001 layers: layrub_hybrid.

    python benchmarks/depth_record/growth.py

Batch 16 on a K40m under PyTorch, a process for each network. Prints a table: where the seconds per 1,000 layers stay
level, the whole is linear.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from membench.capture.capture import Captures
from membench.core.configuration import load
from membench.core.graph.schedule import RepeatedSchedule
from membench.core.units import GIB, KIB
from membench.cost.roofline import RooflineCost
from membench.steps.plan import plan
from membench.steps.simulated_step import simulated_step
from membench.strategies.layrub.strategy import LayrubHybrid
from membench.sweep.cells.model import Model

DEPTHS = (1001, 2501, 5000, 10001)
"""3n + 2 each, as of networks of bottlenecks."""

HEAD = """| layers | tasks | capture, CPU s | plan, CPU s | simulate, CPU s | all per 1,000 layers | memory |
|---:|---:|---:|---:|---:|---:|---:|"""


def row(depth: int) -> str:
    """Return a network's row of the table."""
    seconds: list[float] = []
    framework = load("framework", "pytorch")
    cost = RooflineCost(load("device", "k40m"), framework.efficiency)
    named = Model.named("resnet1517")
    model = replace(named, module={**named.module, "depth": depth})

    def timed(run: Callable[[], Any]) -> Any:
        start_s = time.process_time()
        made = run()
        seconds.append(time.process_time() - start_s)
        return made

    graph = timed(lambda: Captures(model.workload(16, seed=0, device="meta")).graph_at(16))
    schedule = timed(lambda: plan(framework.lower(graph), LayrubHybrid(), cost, None))
    timed(lambda: simulated_step((RepeatedSchedule(schedule),), cost))
    memory_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB / GIB
    cells = [f"{depth:,}", f"{len(graph.tasks):,}", *(f"{each:.1f}" for each in seconds)]
    return f"| {' | '.join(cells)} | {1000 * sum(seconds) / depth:.2f} | {memory_gib:.1f} GiB |"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(row(int(sys.argv[1])), flush=True)
    else:
        print(HEAD, flush=True)
        for depth in DEPTHS:
            subprocess.run([sys.executable, __file__, str(depth)], check=True)
