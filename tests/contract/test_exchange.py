"""Every strategy with its gradients averaged over processes: here over one, where a mean changes nothing."""

from collections.abc import Iterator

import pytest
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings

from membench.backends.cpu import Chaos
from membench.conformance.results import reference_of
from membench.conformance.steps import check_exact, check_peak
from membench.core.graph.schedule import AllReduce, Compute, Schedule
from membench.planning.checking.validate import validate
from membench.planning.memory.liveness import live_bytes
from membench.planning.parallel.exchange import Exchange, exchange_gradients
from membench.steps.plan import plan
from tests.helpers.networks.contract import COST, reference
from tests.helpers.networks.random_networks import PLANS, random_workload
from tests.helpers.steps.checks import step_of
from tests.helpers.steps.variants import COMBINED, EACH_COMBINED, planned


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def exchanged(schedule: Schedule, exchange: Exchange) -> Schedule:
    averaged = exchange_gradients(schedule, exchange)
    validate(averaged, budget_bytes=schedule.peak_bytes, exchanges=True)
    return averaged


@pytest.mark.accelerator
@pytest.mark.parametrize("variant", EACH_COMBINED)
@pytest.mark.parametrize("exchange", Exchange)
def test_results_and_peak_stay_exact(variant: str, exchange: Exchange) -> None:
    case = reference("squeezenet")
    schedule = exchanged(planned("squeezenet", variant), exchange)
    with step_of(case, schedule, chaos=None) as step:
        check_exact(case, step)
        check_peak(case, step)
    with step_of(case, schedule, Chaos(seed=3, longest_delay_s=0.0005)) as step:
        check_exact(case, step)


@pytest.mark.parametrize("variant", EACH_COMBINED)
@pytest.mark.parametrize("exchange", Exchange)
def test_each_gradient_is_averaged_once(variant: str, exchange: Exchange) -> None:
    schedule = exchanged(planned("resnet18", variant), exchange)
    gradients = {value.block for _, value in schedule.graph.gradients if value}
    exchanges = {i: item.block for i, item in enumerate(schedule.instructions) if isinstance(item, AllReduce)}
    assert sorted(exchanges.values()) == sorted(gradients)
    last_task = max(i for i, item in enumerate(schedule.instructions) if isinstance(item, Compute))
    early = [i for i in exchanges if i < last_task]
    assert len(early) > len(exchanges) / 2 if exchange is Exchange.AS_MADE else not early
    assert max(live_bytes(schedule)) == schedule.peak_bytes


@pytest.mark.slow
@pytest.mark.accelerator
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(layers=PLANS)
def test_random_networks_stay_exact(layers: list[tuple[str, int, int]]) -> None:
    case = reference_of(random_workload(layers))
    for strategy in COMBINED.values():
        schedule = plan(case.captured.graph, strategy, COST, None)
        for exchange in Exchange:
            with step_of(case, exchanged(schedule, exchange), Chaos(seed=5)) as step:
                check_exact(case, step)
