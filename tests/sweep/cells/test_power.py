"""Power and energy of a simulated step."""

import pytest

from membench.core.graph.schedule import Compute, Offload, Prefetch, RepeatedSchedule, Schedule, Wait
from membench.core.graph.task_graph import Kind, Phase, Task, TaskGraph
from membench.core.graph.timeline import Span, Timeline
from membench.core.hardware.device import Power
from membench.sweep.cells.power import power_metrics

POWER = Power(awake_w=10, compute_w=100, copy_w=5)
TASK = Task(0, "task", Kind.CONVOLUTION, Phase.FORWARD, 0, (), (), ())
SCHEDULE = Schedule(
    "any", TaskGraph("net", 1, (), (TASK,), ()), (Compute(0), Offload(0), Prefetch(0), Wait("copy", 0)), 0
)


def _metrics(*spans: tuple[int, float, float], step_time_s: float = 10.0) -> dict[str, float]:
    return _of_parts([(1, _timeline(*spans, step_time_s=step_time_s))])


def _timeline(*spans: tuple[int, float, float], step_time_s: float = 10.0) -> Timeline:
    return Timeline(tuple(Span(i, "any", start, end) for i, start, end in spans), step_time_s)


def _of_parts(parts: list[tuple[int, Timeline]], occupancy: float = 1.0) -> dict[str, float]:
    runs = tuple(RepeatedSchedule(SCHEDULE, count) for count, _ in parts)
    timelines = tuple(timeline for _, timeline in parts)
    return power_metrics(runs, timelines, POWER, lambda task: occupancy, images_per_s=2.0)


def test_an_idle_board_takes_what_it_takes_awake() -> None:
    assert _metrics() == {"average_power_w": 10, "maximum_power_w": 10, "energy_j_per_image": 5}


def test_tasks_and_copies_add_up_while_they_overlap() -> None:
    metrics = _metrics((0, 0.0, 4.0), (1, 2.0, 6.0), (2, 5.0, 6.0))
    assert metrics["average_power_w"] == pytest.approx((10 * 10 + 90 * 4 + 5 * 4 + 5 * 1) / 10)
    assert metrics["maximum_power_w"] == 105


def test_tasks_that_follow_each_other_do_not_add_up() -> None:
    assert _metrics((0, 0.0, 5.0), (0, 5.0, 10.0))["maximum_power_w"] == 100


def test_energy_is_power_times_the_time_of_an_image() -> None:
    metrics = _metrics((0, 0.0, 10.0))
    assert (metrics["average_power_w"], metrics["energy_j_per_image"]) == (100, 50)


def test_micro_batches_count_as_often_as_they_run() -> None:
    """Nine runs of ten seconds in which the board computes, and one of five in which it idles."""
    metrics = _of_parts([(9, _timeline((0, 0.0, 10.0))), (1, _timeline(step_time_s=5.0))])
    assert metrics["average_power_w"] == pytest.approx((9 * 10 * 100 + 5 * 10) / 95)
    assert metrics["maximum_power_w"] == 100


def test_a_task_that_fills_half_of_the_device_adds_half_as_much() -> None:
    step = _timeline((0, 0.0, 4.0), (1, 2.0, 6.0))
    full, half = (_of_parts([(1, step)], occupancy) for occupancy in (1.0, 0.5))
    assert (full["maximum_power_w"], half["maximum_power_w"]) == (105, 60)
    assert full["average_power_w"] - half["average_power_w"] == pytest.approx(45 * 4 / 10)
