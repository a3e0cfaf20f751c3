"""Power and energy of a simulated step, from the power levels of its device and how full each task makes it."""

from collections.abc import Callable

from membench.core.graph.schedule import Compute, Offload, Prefetch, RepeatedSchedule, Schedule
from membench.core.graph.task_graph import Task
from membench.core.graph.timeline import Timeline
from membench.core.hardware.device import Power
from membench.sweep.cells.metrics import Metrics

Occupancy = Callable[[Task], float]


def power_metrics(
    parts: tuple[RepeatedSchedule, ...],
    timelines: tuple[Timeline, ...],
    power: Power,
    occupancy: Occupancy,
    *,
    images_per_s: float,
) -> Metrics:
    """Return a step's average and largest power, and its energy.

    Args:
        timelines: timelines of one run of each part.
        occupancy: the fraction of the device that a task fills.
    """
    energy_j = time_s = largest_w = 0.0
    for part, timeline in zip(parts, timelines, strict=True):
        part_j, part_w = _energy_and_largest_power(part.schedule, timeline, power, occupancy)
        energy_j += part.count * part_j
        time_s += part.count * timeline.step_time_s
        largest_w = max(largest_w, part_w)
    return {
        "average_power_w": energy_j / time_s,
        "maximum_power_w": largest_w,
        "energy_j_per_image": energy_j / time_s / images_per_s,
    }


def _energy_and_largest_power(
    schedule: Schedule, timeline: Timeline, power: Power, occupancy: Occupancy
) -> tuple[float, float]:
    """Return joules and watts of one run of a schedule.

    The board takes `Power.awake_w` all the time, more while a task runs, in proportion to the part of the device that
    the task fills, and more again for each copy in progress.
    """
    edges = []
    for span in timeline.spans:
        match schedule.instructions[span.instruction]:
            case Compute(task):
                added_w = (power.compute_w - power.awake_w) * occupancy(schedule.graph.tasks[task])
            case Offload() | Prefetch():
                added_w = power.copy_w
            case _:
                continue
        edges += [(span.start_s, added_w), (span.end_s, -added_w)]
    now_w = largest_w = power.awake_w
    energy_j = before_s = 0.0
    for time_s, change_w in sorted(edges):  # at equal times, ends come first
        energy_j += now_w * (time_s - before_s)
        now_w += change_w
        largest_w = max(largest_w, now_w)
        before_s = time_s
    return energy_j + power.awake_w * (timeline.step_time_s - before_s), largest_w
