"""How capture, planning and simulation grow with depth, from ResNet-50 to ResNet-1517 at batch 32.

Each network in a process of its own. Prints seconds, microseconds per captured task and the process's memory: where the
time per task stays level, the whole is linear.
"""

import resource
import subprocess
import sys
import time

import yaml

from membench.capture.capture import capture
from membench.configuration import CONF_DIRECTORY, load
from membench.cost.roofline import RooflineCost
from membench.schedule import SubBatches
from membench.step import plan, simulated_step
from membench.strategies.layrub import LayrubHybrid
from membench.suite.cell import workload_of
from membench.units import GIB, KIB

DEPTHS = (50, 152, 302, 695, 1001, 1517)


def measure(depth: int) -> str:

    model = yaml.safe_load((CONF_DIRECTORY / "model" / f"resnet{depth}.yaml").read_text())
    configuration = {"model": model, "batch_size": 32, "backend": {"name": "simulated"}, "seed": 0}
    framework, device = load("framework", "caffe"), load("device", "k40m")
    cost = RooflineCost(device, framework.efficiency)
    clock = [time.perf_counter()]

    def lap() -> float:
        clock.append(time.perf_counter())
        return clock[-1] - clock[-2]

    workload = workload_of(configuration)
    build_s = lap()
    captured = capture(workload)
    capture_s = lap()
    lowered = framework.lower(captured.graph)
    schedule = plan(lowered, LayrubHybrid(), cost, None)
    plan_s = lap()
    simulated_step((SubBatches(schedule),), device, cost).measure()
    simulate_s = lap()
    tasks = len(captured.graph.tasks)
    total_s = capture_s + plan_s + simulate_s
    memory_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB / GIB
    return (
        f"ResNet-{depth:<5d} {tasks:6d} tasks   build {build_s:5.1f} s   capture {capture_s:5.1f} s   "
        f"schedule {plan_s:5.1f} s   simulate {simulate_s:4.1f} s   together {total_s:5.1f} s   "
        f"{total_s / tasks * 1e6:6.0f} us/task   {memory_gib:4.2f} GB"
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(measure(int(sys.argv[1])), flush=True)
    else:
        for depth in DEPTHS:
            subprocess.run([sys.executable, __file__, str(depth)], check=True)
