"""`auto`: another method's schedule, the fastest lossless one that keeps the budget, with the reason for the choice."""

import pytest
import torch
from torch import nn

import membench
from membench.core.errors import InfeasibleSchedule
from membench.strategies.base import strategies

LEFT_OUT = {"auto", "by_module", "epmc", "modnn", "serial_csr"}
"""It itself, the one whose modules a user names, those that round, and one that would work in micro-batches."""


def step() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())]
    module = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(10))
    batch = torch.randn(16, 8, 16, 16), torch.randint(10, (16,))
    module(batch[0])
    return module, nn.CrossEntropyLoss(), batch


def simulated(strategy: str, budget: int | None) -> membench.SimulatedStep:
    found = membench.compile(*step(), strategy=strategy, backend="simulated", device="rtx3090", budget=budget)
    assert isinstance(found, membench.SimulatedStep)
    return found


def within(budget: int | None) -> dict[str, membench.SimulatedStep]:
    found = {}
    for name in set(strategies()) - LEFT_OUT:
        try:
            found[name] = simulated(name, budget)
        except membench.MembenchError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("share", [None, 0.9, 0.6])
def test_no_lossless_method_within_the_budget_is_faster(share: float | None) -> None:
    eager = simulated("eager", None)
    budget = None if share is None else int(share * eager.predicted_peak_bytes)
    auto, others = simulated("auto", budget), within(budget)
    fastest_s = min(each.step_time_s for each in others.values())
    assert auto.step_time_s == fastest_s
    assert budget is None or auto.predicted_peak_bytes <= budget
    text = str(auto.plan[0])
    chosen = text.splitlines()[1].partition(" ")[0]
    assert "is the fastest of" in text and others[chosen].step_time_s == fastest_s
    assert "is the fastest of" in str(auto.plan)


@pytest.mark.slow
def test_a_budget_that_no_method_keeps_is_refused_with_the_least_need() -> None:
    with pytest.raises(InfeasibleSchedule) as refusal:
        simulated("auto", 1000)
    needs = []
    for name in set(strategies()) - LEFT_OUT:
        try:
            simulated(name, 1000)
        except InfeasibleSchedule as error:
            needs.append(error.needed_bytes)
        except membench.MembenchError:
            continue
    assert refusal.value.needed_bytes <= min(needs)


@pytest.mark.slow
def test_a_step_by_auto_computes_what_eager_does() -> None:
    results = []
    for strategy, budget in (("eager", None), ("auto", 900_000)):
        module, loss, batch = step()
        made = membench.compile(module, loss, batch, strategy=strategy, budget=budget)
        results.append([made(*batch), *(weight.grad for weight in module.parameters())])
        made.close()
    assert all(map(torch.equal, *results))
