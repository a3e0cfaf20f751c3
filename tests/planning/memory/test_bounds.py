"""The lower bound on the memory of a step: no method that leaves weights on the device does with less."""

import pytest
import torch
from torch import nn

from membench.capture.capture import capture
from membench.capture.update.captured_update import CapturedUpdate
from membench.core.errors import InfeasibleSchedule
from membench.core.graph.task_graph import TaskGraph
from membench.core.step.optimizer import WeightUpdate
from membench.core.step.workload import Workload
from membench.planning.memory.bounds import least_bytes
from membench.planning.rewrites.rewrite import update_on_host
from membench.planning.rewrites.update import add_update
from membench.steps.plan import StepPlanner, plan
from membench.strategies.base import Strategy, strategies
from tests.helpers.networks.contract import COST

UPDATES = {
    "none": None,
    "adamw": WeightUpdate(torch.optim.AdamW),
    "in backward": WeightUpdate(torch.optim.AdamW, in_backward=True),
    "kept": WeightUpdate(torch.optim.SGD, gradients="kept"),  # type: ignore[arg-type]
}


def step(update: str, size: int = 4) -> TaskGraph:
    with torch.device("meta"):
        module = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 10)
        )
        batch = torch.randn(size, 3, 8, 8), torch.randint(10, (size,))
    by = UPDATES[update]
    work = Workload("net", module, nn.functional.cross_entropy, (batch[0],), (batch[1],), accumulates=update == "kept")
    graph = capture(work).graph
    return add_update(graph, by and CapturedUpdate(by, module))


@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("name", [name for name, method in strategies().items() if not method().moves_weights])
def test_no_method_that_leaves_weights_on_the_device_needs_less(name: str, update: str) -> None:
    graph = step(update)
    bound_bytes = least_bytes(graph)
    assert _least_peak(graph, strategies()[name](), bound_bytes) >= bound_bytes


def _least_peak(graph: TaskGraph, method: Strategy, bound_bytes: int) -> int:
    """Return the peak without a budget, or that of a plan below the bound."""
    free = plan(graph, method, COST, None).peak_bytes
    try:
        return min(free, plan(graph, method, COST, bound_bytes - 1).peak_bytes)
    except InfeasibleSchedule:
        return free


def test_it_is_what_stays_and_what_the_update_needs() -> None:
    graph = step("adamw")
    plain = graph.plain
    assert plain is not None
    (update,) = (task for task in plain.tasks if task.phase == "update")
    weights = sum(block.size_bytes for block in plain.blocks if block.name in dict(plain.gradients))
    states = sum(block.size_bytes for block in plain.blocks if block.role == "optimizer state")
    assert least_bytes(plain) == weights + states + weights + update.workspace_bytes
    assert least_bytes(step("none")) == 2 * weights
    assert weights + states < least_bytes(graph) < least_bytes(plain)  # in parts
    assert least_bytes(update_on_host(graph)) < weights


def test_it_holds_for_micro_batches() -> None:
    update = CapturedUpdate(UPDATES["adamw"], None)  # type: ignore[arg-type]
    with torch.device("meta"):
        module = nn.Linear(64, 10)
        batch = torch.randn(4, 64), torch.randint(10, (4,))
    whole = Workload("net", module, nn.functional.cross_entropy, (batch[0],), (batch[1],))

    def graph_at(size: int) -> TaskGraph:
        return capture(whole.of_size(size)).graph

    runs = StepPlanner(graph_at, 4, strategies()["eager"](), COST, update=update, micro_batch=1).within(None)
    peak_bytes = max(run.schedule.peak_bytes for run in runs)
    assert peak_bytes >= least_bytes(add_update(graph_at(4), update))
