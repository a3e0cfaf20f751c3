"""Layrub's numbers, and vDNN's largest batch: runs that do not fit, and iterations of several steps."""

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from experiments.layrub.metrics import (
    INTERMEDIATE_ROLES,
    epoch_time_s,
    iteration_time_s,
    runtime_memory_bytes,
    step_metrics,
    table_5_time_s,
    trained_layers,
)
from experiments.vdnn.metrics import trained_batch_size
from membench.core import configuration
from membench.core.graph.schedule import RepeatedSchedule
from membench.core.hardware.efficiency import Efficiency
from membench.core.record import Outcome
from membench.cost.roofline import RooflineCost
from membench.planning.memory.liveness import peak_bytes
from membench.steps.plan import plan
from membench.steps.simulated_step import simulated_step
from membench.strategies.base import Strategy
from membench.strategies.eager import Eager
from membench.strategies.layrub.strategy import LayrubIntra
from tests.helpers.lab.papers import PAPER, cell, record
from tests.helpers.planning.costs import UnitCost
from tests.helpers.planning.graphs import captured


@pytest.mark.parametrize(
    ("outcome", "layers", "batch_size"),
    [(Outcome.OK, 5, 8), (Outcome.OUT_OF_MEMORY, 0, 0), (Outcome.FAILED, None, None)],
)
def test_depth_and_batch_count_what_trained(outcome: Outcome, layers: int | None, batch_size: int | None) -> None:
    assert trained_layers(PAPER, cell(), record(outcome)) == layers
    assert trained_batch_size(PAPER, cell(), record(outcome)) == batch_size


@pytest.mark.parametrize(("framework", "iteration_s"), [("mxnet", 6.0), ("caffe", 3.0)])
def test_an_iteration_may_be_several_steps_of_a_framework(framework: str, iteration_s: float) -> None:
    models = {"small": {**PAPER.models["small"], "steps_per_iteration": {"mxnet": 2}}}
    paper = replace(PAPER, models=models, systems={"ours": {"framework": framework}})
    assert iteration_time_s(paper, cell(), record(step_time_s=3.0)) == iteration_s
    assert epoch_time_s(paper, cell(), record(step_time_s=3.0)) == 1000 / 8 * iteration_s


@pytest.mark.parametrize(
    ("own", "steps"), [({}, 20), ({"steps_per_iteration": {"mxnet": 2}}, 40), ({"table_5": "epoch"}, 1000 / 8)]
)
def test_a_time_of_table_5_is_that_of_20_iterations_or_of_an_epoch(own: dict[str, Any], steps: float) -> None:
    paper = replace(PAPER, models={"small": {**PAPER.models["small"], **own}})
    assert table_5_time_s(paper, cell(), record(step_time_s=3.0)) == 3 * steps
    assert table_5_time_s(paper, cell(), record(Outcome.OUT_OF_MEMORY)) is None


def test_memory_at_run_time_counts_what_the_idle_card_holds() -> None:
    for device, expected_bytes in (({}, 100), ({"idle_bytes": 7}, 107)):
        ran = replace(record(peak_memory_bytes=100), configuration={"device": device})
        assert runtime_memory_bytes(PAPER, cell(), ran) == expected_bytes
    assert runtime_memory_bytes(PAPER, cell(), record(Outcome.OUT_OF_MEMORY)) is None


def test_only_the_last_step_of_an_iteration_exchanges_gradients() -> None:
    models = {"small": {**PAPER.models["small"], "steps_per_iteration": {"mxnet": 3}}}
    exchanged = record(step_time_s=3.0, local_step_time_s=2.0)
    assert iteration_time_s(replace(PAPER, models=models), cell(), exchanged) == 7


def test_a_run_that_does_not_fit_has_no_time() -> None:
    assert iteration_time_s(PAPER, cell(), record(Outcome.OUT_OF_MEMORY)) is None
    assert epoch_time_s(PAPER, cell(), record(Outcome.OUT_OF_MEMORY)) is None


def test_a_copy_is_compared_with_the_convolution_whose_output_it_moves() -> None:
    """One convolution of 18 operations for each of 32 outputs; half as many operations, half the speed-up."""
    device = configuration.load("device", "k40m")
    module = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.Flatten(), nn.Linear(32, 10))
    graph = captured(module, 1, 1, 6, 6)
    found = []
    for arithmetic in (0.5, 1.0):
        cost = RooflineCost(device, Efficiency(arithmetic, 1.0))
        run = RepeatedSchedule(plan(graph, Eager(), cost, None))
        step = simulated_step((run,), cost)
        metrics = step_metrics((run,), step.timelines, device)
        assert metrics["intermediate_memory_bytes"] == peak_bytes(run.schedule, INTERMEDIATE_ROLES) > 0
        found.append(metrics["migration_speedup"])
        assert metrics["migration_speedup_of_sums"] == pytest.approx(found[-1])  # there is one copy
    copy_s = device.copy_latency_s + 4 * 32 / device.host_to_device_bytes_per_s
    assert found[1] == pytest.approx(2 * 9 * 32 / device.arithmetic_ops_per_s / copy_s)
    assert found[0] == pytest.approx(2 * found[1])


def test_a_convolution_has_the_times_of_both_its_gradients_where_two_tasks_compute_them() -> None:
    """The first one has no gradient of its data, which are images."""
    device = configuration.load("device", "k40m")
    layers = nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(8, 10)
    graph = captured(nn.Sequential(*layers), 1, 1, 6, 6)
    cost = RooflineCost(device, Efficiency(1.0, 1.0))

    def times_s(strategy: Strategy) -> dict[str, float]:
        run = RepeatedSchedule(plan(graph, strategy, cost, None))
        step = simulated_step((run,), cost)
        metrics = step_metrics((run,), step.timelines, device)
        return {name: time_s for name, time_s in metrics.items() if "_gradient_" in name}

    apart = times_s(LayrubIntra())
    in_order = "weight_gradient_{}_s:1", "data_gradient_{}_s:1", "weight_gradient_{}_s:0"
    names = [name.format(edge) for name in in_order for edge in ("start", "end")]
    assert sorted(apart, key=apart.__getitem__) == names
    assert set(times_s(Eager())) == {name for name in names if name.endswith(":0")}


def test_without_a_device_there_is_no_time_of_a_copy() -> None:
    run = RepeatedSchedule(plan(captured(nn.Linear(4, 10), 2, 4), Eager(), UnitCost(), None))
    assert set(step_metrics((run,), (), None)) == {"intermediate_memory_bytes"}
