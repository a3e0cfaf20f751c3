"""Processor time of commands over that of importing torch and its compiler, and of captures over that of plain steps.

A plain step is the same network's on the meta device, where torch computes shapes alone. Medians of three.
"""

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from torch.nn.functional import cross_entropy

from membench.capture.capture import capture
from membench.capture.trace import ANY_GPU
from membench.core import configuration
from membench.core.step.arguments import call_with
from membench.core.step.workload import Workload
from membench.sweep.cells.model import Model

COMMANDS = {
    "run, one simulated cell": ["-m", "membench", "run", "model=lenet", "batch_size=4", "rerun=all"],
    "predict, resnet50": ["-m", "membench", "predict", "model=resnet50", "device=a100_80gb"],
}
FLOOR = ["-c", "import torch._dynamo"]
NETWORKS = ("resnet50", "densenet121", "vit_b_16")
BATCH_SIZE = 4
REPETITIONS = 3


def ratios() -> dict[str, float]:
    """Return the ratios by what they compare."""
    floor_s = command_time_s(FLOOR)
    found = {f"{name}: over its imports": command_time_s(words) / floor_s for name, words in COMMANDS.items()}
    for name in NETWORKS:
        workload = Model.from_configuration(configuration.read("model", name)).workload(
            BATCH_SIZE, seed=0, device="meta"
        )
        found[f"capture of {name}: over a plain step on meta"] = ratio_of_capture(workload)
    return found


def command_time_s(words: list[str]) -> float:
    """Return the processor time of a process of Python and those that it starts."""

    def run() -> None:
        subprocess.run([sys.executable, *words], check=True, capture_output=True)

    return _median_s(run, lambda: _used_s(resource.RUSAGE_CHILDREN))


def ratio_of_capture(workload: Workload) -> float:
    """Return the processor time of a capture over that of the step itself, both without data."""

    def step() -> None:
        cross_entropy(call_with(workload.module, workload.inputs), *workload.targets).backward()

    step()
    plain_s = _median_s(step, time.process_time)
    return _median_s(lambda: capture(workload, ANY_GPU), time.process_time) / plain_s


def _median_s(run: Callable[[], object], clock: Callable[[], float]) -> float:
    taken_s = []
    for _ in range(REPETITIONS):
        start_s = clock()
        run()
        taken_s.append(clock() - start_s)
    return statistics.median(taken_s)


def _used_s(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    print(ratios())
