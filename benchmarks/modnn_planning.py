"""How long moDNN plans a step within 12 GB, from ResNet-50 to ResNet-1517 at batch 256: its sub-batch and its schedule.

Each network in a process of its own. Capture of the sub-batches that are looked at is counted apart; where the planning time
per task stays level, it is linear in depth.
"""

import subprocess
import sys
import time

import yaml

from membench.capture.capture import Captures
from membench.configuration import CONF_DIRECTORY, load
from membench.cost.roofline import RooflineCost
from membench.step import plan_step, simulated_step
from membench.strategies.modnn import Modnn
from membench.suite.cell import workload_of
from membench.task_graph import TaskGraph
from membench.units import GIB

DEPTHS = (50, 152, 302, 695, 1001, 1517)
BATCH_SIZE = 256
BUDGET_BYTES = 12 * GIB


def measure(depth: int) -> str:
    model = yaml.safe_load((CONF_DIRECTORY / "model" / f"resnet{depth}.yaml").read_text())
    configuration = {"model": model, "batch_size": BATCH_SIZE, "backend": {"name": "simulated"}, "seed": 0}
    framework, device = load("framework", "modnn"), load("device", "k40_modnn")
    cost = RooflineCost(device, framework.efficiency)
    captures = Captures(workload_of(configuration))
    capture_s = 0.0

    def graph_at(size: int) -> TaskGraph:
        nonlocal capture_s
        start_s = time.perf_counter()
        graph = framework.lower(captures.graph_at(size))
        capture_s += time.perf_counter() - start_s
        return graph

    start_s = time.perf_counter()
    parts = plan_step(graph_at, BATCH_SIZE, Modnn(), cost, BUDGET_BYTES)
    plan_s = time.perf_counter() - start_s - capture_s
    step_time_s = simulated_step(parts, device, cost).measure().step_time_s
    schedule = parts[0].schedule
    tasks = len(schedule.graph.tasks)
    return (
        f"ResNet-{depth:<5d} {tasks:6d} tasks   sub-batch {schedule.graph.batch_size:3d}   capture {capture_s:6.1f} s   "
        f"plan {plan_s:6.1f} s   {plan_s / tasks * 1e6:6.0f} us/task   peak {schedule.peak_bytes / GIB:5.2f} GiB   "
        f"step {step_time_s:6.1f} s"
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(measure(int(sys.argv[1])), flush=True)
    else:
        for depth in DEPTHS:
            subprocess.run([sys.executable, __file__, str(depth)], check=True)
