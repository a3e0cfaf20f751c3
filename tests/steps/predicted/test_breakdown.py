"""Operators of a predicted step: their times, operations and bytes are those of the step's tasks."""

import pytest
import torch
from torch import nn

import membench
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.step.workload import Workload
from membench.steps.parallel.ranks import ONE_RANK, ranks_of
from membench.steps.predict import Predictor
from membench.steps.predicted.breakdown import OperatorTime, operator_times
from membench.steps.request import StepRequest
from membench.strategies.base import find_strategy

WIDTH = 256


def operators(strategy: str = "pytorch", layers: int = 2, **options: object) -> dict[str, OperatorTime]:
    with torch.device("meta"):
        module = nn.Sequential(*(each for _ in range(layers) for each in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
        inputs = torch.empty(8, WIDTH)
    ranks = ranks_of(module, configuration.load("cluster", "dgx_h100"), **options) if options else ONE_RANK  # type: ignore[arg-type]
    update = membench.WeightUpdate(torch.optim.Adam)
    work = Workload("layers", module, nn.MSELoss(), (inputs,), (inputs,))
    predictor = Predictor(work, StepRequest(find_strategy(strategy)(), optimizer=update), ranks)
    runs, cost = predictor.planned(configuration.load("device", "h100"))
    found = operator_times(runs, cost)
    tasks = [task for run in runs for task in run.schedule.graph.tasks for _ in range(run.count)]
    assert sum(operator.calls for operator in found) == len(tasks)
    assert sum(operator.time_s for operator in found) == pytest.approx(sum(map(cost.task_time_s, tasks)))
    assert [each.time_s for each in found] == sorted((each.time_s for each in found), reverse=True)
    return {operator.name: operator for operator in found}


def test_products_have_operations_and_others_bytes() -> None:
    found = operators()
    products = [found[name] for name in ("addmm", "mm")]
    assert [each.calls for each in products] == [2, 3], "the first layer's input has no gradient"
    assert sum(each.operations for each in products) == 5 * 2 * 8 * WIDTH**2
    assert found["relu"].operations == 0
    assert found["relu"].moved_bytes == 2 * 2 * 8 * WIDTH * 4, "two layers read and write"
    assert found["update"].moved_bytes > 0


def test_what_runs_again_has_a_line_of_its_own() -> None:
    found = operators("memonger", layers=16)
    assert 0 < found["addmm again"].calls < found["addmm"].calls


def test_micro_batches_count_and_collectives_have_their_axis() -> None:
    found = operators(parallel={"fsdp": 8}, accumulate=3, wrapped=["Linear"])
    assert found["addmm"].calls == 3 * 2
    assert found["all_gather over fsdp"].time_s > 0
    assert found["all_gather over fsdp"].moved_bytes == 0


def test_ranks_of_a_pipeline_are_refused() -> None:
    with pytest.raises(MembenchError, match="leave pp out of parallel"):
        operators(parallel={"pp": 2, "dp": 4}, wrapped=["Linear"], accumulate=2)
