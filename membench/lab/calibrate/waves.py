"""How a Kepler's convolutions slow down in small batches, and how fast Winograd's are, fitted on public throughputs.

MXNet's developers list images per second by batch size on a Tesla K80. Two constants of ``conf/framework/modnn.yaml``
are taken from that list and from no row of a paper: the rate of Winograd's algorithm, which decides how fast the
largest batches are, and `Efficiency.half_waves`, which decides how much slower the small ones are. All other rates stay
as they are.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from membench.capture.capture import Captures
from membench.core import configuration
from membench.core.configuration import ROOT
from membench.core.graph.task_graph import Phase, Task
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.efficiency import Efficiency
from membench.cost.convolution import ConvolutionAlgorithm
from membench.cost.roofline import RooflineCost
from membench.cost.waves import task_waves
from membench.sweep.cells.model import Model

PUBLISHED = ROOT / "experiments" / "modnn" / "kepler_by_batch.csv"
WINOGRAD_RATES = tuple(step / 100 for step in range(15, 41))
HALF_WAVES = tuple(step / 10 for step in range(26))


@dataclass(frozen=True)
class Throughputs:
    """Images per second of one network on one device, by batch size.

    Attributes:
        model: a name in ``conf/model``.
        mode: ``"inference"``, the forward pass alone, or ``"training"``.
    """

    model: str
    mode: str
    images_per_s: Mapping[int, float]


@dataclass(frozen=True)
class StepTimes:
    """The tasks of one step, each with its time on a device that it fills, and its waves of thread blocks.

    Attributes:
        images: images in the step.
        launch_s: launch time of all tasks.
    """

    images: int
    full_s: NDArray[np.float64]
    waves: NDArray[np.float64]
    launch_s: float

    def images_per_s(self, half_waves: float) -> float:
        """Return the throughput where kernels reach half of their rates at that many waves."""
        slowdown = 1 + half_waves / self.waves
        return self.images / (self.launch_s + float((self.full_s * slowdown).sum()))


def fit_waves() -> str:
    """Return the two constants that meet the published throughputs best, and a line of residuals for each network."""
    published = read_published()
    device, efficiency = (configuration.load("device", "k80"), configuration.load("framework", "modnn").efficiency)
    tasks = [_tasks_by_size(row) for row in published]
    ranked = []
    for winograd in WINOGRAD_RATES:
        cost = _cost_of_full_kernels(device, efficiency, winograd)
        steps = [[_step_times(*step, cost, device) for step in of_row.items()] for of_row in tasks]
        for half_waves in HALF_WAVES:
            errors = [relative_errors(*row, half_waves) for row in zip(published, steps, strict=True)]
            ranked.append((mean_square(errors), winograd, half_waves, errors))
    _, winograd, half_waves, errors = min(ranked)
    lines = [f"winograd: {winograd:g}  # of the peak arithmetic rate", f"half_waves: {half_waves:g}"]
    for row, found in zip(published, errors, strict=True):
        residuals = "".join(f"{size:>6d} {value:+.0%}" for size, value in zip(row.images_per_s, found, strict=True))
        lines.append(f"{row.model:9s} {row.mode:9s} images/s by batch size{residuals}")
    return "\n".join(lines)


def read_published() -> list[Throughputs]:
    """Return the published throughputs."""
    lines = [line for line in PUBLISHED.read_text().splitlines() if not line.startswith("#")]
    return [
        Throughputs(model, mode, {int(size): float(value) for size, value in zip(sizes, values, strict=True) if value})
        for (_, _, *sizes), *rows in [list(csv.reader(lines))]
        for model, mode, *values in rows
    ]


def relative_errors(row: Throughputs, steps: list[StepTimes], half_waves: float) -> list[float]:
    """Return for each batch size how far the computed throughput is from the published one, as a fraction of that."""
    return [
        step.images_per_s(half_waves) / value - 1 for step, value in zip(steps, row.images_per_s.values(), strict=True)
    ]


def mean_square(errors: list[list[float]]) -> float:
    """Return the mean squared logarithmic error at each network's largest batch, plus that of other batches over it.

    Args:
        errors: relative errors of each network, the largest batch last.
    """
    logs = [np.log1p(found) for found in errors]
    levels = np.array([found[-1] for found in logs])
    slopes = np.concatenate([found[:-1] - found[-1] for found in logs])
    return float(np.square(levels).mean() + np.square(slopes).mean())


def _cost_of_full_kernels(device: DeviceProfile, efficiency: Efficiency, winograd: float) -> RooflineCost:
    rates = {**efficiency.convolution, ConvolutionAlgorithm.WINOGRAD: winograd}
    return RooflineCost(device, replace(efficiency, convolution=rates, half_waves=0.0))


def _step_times(size: int, tasks: list[Task], cost: RooflineCost, device: DeviceProfile) -> StepTimes:
    assert device.multiprocessors is not None
    return StepTimes(
        images=size,
        full_s=np.array([cost.algorithms(task)[0].time_s for task in tasks]),
        waves=np.array([task_waves(task, device.multiprocessors) for task in tasks]),
        launch_s=sum(map(cost.launch_time_s, tasks)),
    )


def _tasks_by_size(row: Throughputs) -> dict[int, list[Task]]:
    """Return the tasks that take time, for each batch size; those of inference are a training step's forward pass."""
    model = Model.named(row.model)
    captures = Captures(model.workload(max(row.images_per_s), seed=0, device="meta"))
    return {
        size: [
            task
            for task in captures.graph_at(size).tasks
            if task.moved_bytes and (row.mode == "training" or task.phase is Phase.FORWARD)
        ]
        for size in row.images_per_s
    }
