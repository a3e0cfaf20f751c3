"""CPU time of simulated cells of deep networks, without and with their capture.

The cells of a network share its capture. The first one of each is run twice: what it takes the second time is planning,
checking, simulation and metrics. Prints seconds of CPU time; the ratios are of all methods' cells over their capture,
and of a captured task in the deeper network over one in the other.
"""

import time

from hydra import compose

from membench.core import configuration
from membench.core.record import Configuration
from membench.sweep.cells.run import run_cells
from membench.sweep.composition import cell_configuration, hydra_composition

DEPTHS = (302, 1517)
STRATEGIES = ("layrub_hybrid", "memonger", "vdnn_all", "eager")
SYSTEM = ("device=k40m", "framework=caffe", "batch_size=32")


def cells(depth: int) -> list[Configuration]:
    with hydra_composition():
        usual = cell_configuration(compose("config", overrides=[*SYSTEM, f"model=resnet{depth}"]))
    return [usual | {"strategy": configuration.read("strategy", strategy)} for strategy in STRATEGIES]


def measure(depth: int) -> tuple[float, float, float]:
    """Return the CPU seconds of a network's capture and of its cells without it, and the tasks of its graph."""
    first, *others = cells(depth)
    times_s, tasks = [], 0.0
    before_s = time.process_time()
    for record in run_cells([first, first, *others]):
        times_s.append(time.process_time() - before_s)
        tasks, before_s = record.metrics["tasks"], time.process_time()
    with_capture_s, *without_s = times_s
    for strategy, time_s in zip(STRATEGIES, without_s, strict=True):
        print(f"ResNet-{depth} {strategy:15s} {time_s:6.2f} s", flush=True)
    capture_s = with_capture_s - without_s[0]
    print(f"ResNet-{depth} capture         {capture_s:6.2f} s", flush=True)
    return capture_s, sum(without_s), tasks


def ratios() -> dict[str, float]:
    """Return what cells take over their capture, and a task of the deeper network over one of the other."""
    (_, few_s, few), (capture_s, many_s, many) = map(measure, DEPTHS)
    shallow, deep = DEPTHS
    return {
        f"{len(STRATEGIES)} methods' cells of ResNet-{deep} over its capture, CPU time": many_s / capture_s,
        f"a task's CPU time in a cell at {deep} layers over {shallow}": (many_s / many) / (few_s / few),
    }


if __name__ == "__main__":
    ratios()
