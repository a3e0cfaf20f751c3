"""Steps with deferred updates: PyTorch's own bits after `restore`, and no old value in between."""

import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import membench
from membench.backends.cpu import Chaos
from membench.core.errors import MembenchError, ModuleChanged, UnsupportedStrategy
from membench.core.graph.schedule import HOST_STREAM
from membench.core.step.workload import Workload
from membench.strategies.base import Strategy
from membench.strategies.ratel import Ratel
from membench.strategies.zero_infinity import ZeroInfinity
from tests.helpers.devices import allocator_peak_bytes
from tests.helpers.steps.disk import layers
from tests.helpers.steps.host_updates import HostUpdates
from tests.helpers.steps.updates import (
    MAKERS,
    assert_same,
    first_difference,
    plain_training,
    run_steps,
    updating_step,
    values,
)

pytestmark = pytest.mark.accelerator

STEPS = 3
HALF, ALL = HostUpdates(deferred_share=0.5), HostUpdates(deferred_share=1.0)
Make = Callable[..., torch.optim.Optimizer]


def started(work: Workload, make: Make, by: Strategy = ALL, chaos: Chaos | None = None) -> tuple[Any, Any]:
    optimizer = make(work.module.parameters())
    return updating_step(work, optimizer, by, chaos=chaos), optimizer


def run(step: Any, work: Workload, seed: int) -> Tensor:
    torch.manual_seed(seed)
    loss: Tensor = step(work.inputs, work.targets)
    return loss


def empty(module: nn.Module) -> list[str]:
    return [name for name, weight in module.named_parameters() if not weight.numel()]


@pytest.mark.parametrize("name", ["momentum", "adam", "adamw"])
@pytest.mark.parametrize("by", [HALF, ALL, ZeroInfinity(deferred_share=1.0), Ratel(deferred_share=0.5)])
def test_steps_are_pytorchs_bit_for_bit_and_hold_what_is_predicted(name: str, by: Strategy) -> None:
    original, make = layers(), MAKERS[name]
    work = deepcopy(original)
    step, optimizer = started(work, make, by, Chaos(seed=1, longest_delay_s=0.0005))
    for seed, (loss, module, expected) in enumerate(plain_training(original, make, STEPS, on_host=True)):
        assert torch.equal(run(step, work, seed), loss)
        if seed + 1 == STEPS:
            step.restore()
            assert_same(values(work.module, optimizer), values(module, expected))
    held_bytes = allocator_peak_bytes(lambda: run_steps(work, step), step.backends)
    assert step.schedule.graph.external_bytes + held_bytes == step.schedule.peak_bytes
    step.close()


@pytest.mark.parametrize("restores", [(), (0,), (1,), (0, 1, 2)])
def test_restore_may_be_called_at_any_time_and_leaves_nothing_to_do(restores: tuple[int, ...]) -> None:
    original, make = layers(), MAKERS["adamw"]
    work = deepcopy(original)
    step, optimizer = started(work, make, HALF)
    for seed, (_, module, expected) in enumerate(plain_training(original, make, STEPS, on_host=True)):
        run(step, work, seed)
        if seed in restores:
            step.restore()
            step.restore()
            assert_same(values(work.module, optimizer), values(module, expected))
    step.close()
    assert_same(values(work.module, optimizer), values(module, expected))


def test_what_is_pending_cannot_be_read() -> None:
    work = layers()
    step, optimizer = started(work, MAKERS["adam"], HALF)
    names = [name for name, _ in work.module.named_parameters()]
    run(step, work, 0)
    hidden = empty(work.module)
    assert 0 < len(hidden) < len(names)
    run(step, work, 1)
    assert empty(work.module) == hidden
    weights = dict(work.module.named_parameters())
    assert not any(state.numel() for name in hidden for state in optimizer.state[weights[name]].values())
    step.restore()
    assert not empty(work.module)
    step.close()


@pytest.mark.parametrize("reads", ["module", "optimizer"])
def test_a_state_dict_has_every_update(reads: str) -> None:
    original, make = layers(), MAKERS["adamw"]
    work = deepcopy(original)
    step, optimizer = started(work, make)
    run(step, work, 0)
    run(step, work, 1)
    (work.module if reads == "module" else optimizer).state_dict()
    *_, (_, module, expected) = plain_training(original, make, 2, on_host=True)
    assert_same(values(work.module, optimizer), values(module, expected))
    step.close()


def test_a_loaded_state_is_not_updated_by_gradients_of_the_time_before() -> None:
    work, make = layers(), partial(torch.optim.SGD, lr=0.5)  # without states
    loaded = {name: tensor + 1 for name, tensor in work.module.state_dict().items()}
    once, twice = deepcopy(work), deepcopy(work)
    once.module.load_state_dict(loaded)
    for each, seeds in ((once, (1,)), (twice, (0, 1))):
        step, _ = started(each, make)
        for seed in seeds:
            if seed:
                each.module.load_state_dict(loaded)
            run(step, each, seed)
        step.close()
    assert not first_difference(once.module, twice.module)


def test_each_update_has_the_learning_rate_of_its_step() -> None:
    original = layers()
    work = deepcopy(original)
    step, optimizer = started(work, partial(torch.optim.SGD, lr=0.5))
    module = deepcopy(original.module)
    expected = torch.optim.SGD(module.parameters(), lr=0.5)
    assert original.loss is not None
    for seed, rate in enumerate([0.5, 0.1, 0.01]):
        optimizer.param_groups[0]["lr"] = expected.param_groups[0]["lr"] = rate
        run(step, work, seed)
        torch.manual_seed(seed)
        original.loss(module(*original.inputs), *original.targets).backward()
        expected.step()
        expected.zero_grad()
    optimizer.param_groups[0]["lr"] = 100.0
    step.restore()
    assert optimizer.param_groups[0]["lr"] == 100.0
    assert_same(values(work.module, optimizer), values(module, expected))
    step.close()


def test_a_step_that_is_dropped_applies_what_is_pending() -> None:
    original, make = layers(), MAKERS["adam"]
    work = deepcopy(original)
    step, optimizer = started(work, make)
    run(step, work, 0)
    assert empty(work.module)
    del step
    [(_, module, expected)] = plain_training(original, make, 1, on_host=True)
    assert_same(values(work.module, optimizer), values(module, expected))
    pickle.dumps(work.module)


def test_a_module_is_not_copied_or_pickled_while_updates_are_pending() -> None:
    work = layers()
    step, _ = started(work, MAKERS["adam"])
    run(step, work, 0)
    with pytest.raises(MembenchError, match=r"call restore\(\) of the step before the module is copied or pickled"):
        deepcopy(work.module)
    step.restore()
    deepcopy(work.module).state_dict()
    step.close()


def test_a_step_that_fails_keeps_what_is_pending() -> None:
    original, make = layers(), MAKERS["adamw"]
    work = deepcopy(original)
    step, optimizer = started(work, make, HALF)
    run(step, work, 0)
    with pytest.raises(MembenchError):
        step(work.inputs, ())
    assert empty(work.module)
    run(step, work, 1)
    step.close()
    *_, (_, module, expected) = plain_training(original, make, 2, on_host=True)
    assert_same(values(work.module, optimizer), values(module, expected))


def test_measuring_changes_nothing_and_times_updates() -> None:
    original, make = layers(), MAKERS["adamw"]
    work = deepcopy(original)
    step, optimizer = started(work, make)
    run(step, work, 0)
    measured = step.measure()
    assert measured.peak_bytes == step.predicted_peak_bytes
    assert step.timeline().busy_s(HOST_STREAM) > 0
    [(_, module, expected)] = plain_training(original, make, 1, on_host=True)
    assert_same(values(work.module, optimizer), values(module, expected))
    step.close()


def test_other_steps_of_the_module_do_not_compute_on_old_weights() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    batch = torch.randn(3, 4), torch.randint(2, (3,))
    inference = membench.compile(network, None, (batch[0], ()))
    step = membench.compile(
        network, nn.functional.cross_entropy, batch, strategy=ZeroInfinity(deferred_share=1.0), optimizer="adam"
    )
    step(*batch)
    with pytest.raises(ModuleChanged, match="compile again"):
        inference(batch[0])
    step.restore()
    assert torch.equal(inference(batch[0]), network(batch[0]))
    step.close()


def test_steps_for_any_shape_apply_what_another_shape_has_deferred() -> None:
    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))

    ours, theirs = network(), network()
    batches = [(torch.randn(size, 4), torch.randint(2, (size,))) for size in (3, 3, 5, 3, 5)]
    optimizers = [torch.optim.AdamW(module.parameters()) for module in (ours, theirs)]
    loss = nn.functional.cross_entropy
    strategy = ZeroInfinity(deferred_share=1.0)
    step = membench.compile(ours, loss, batches[0], strategy=strategy, optimizer=optimizers[0], shapes="any")
    for inputs, targets in batches:
        step(inputs, targets)
        loss(theirs(inputs), targets).backward()
        optimizers[1].step()
        optimizers[1].zero_grad()
    assert len(step.steps) == 2
    step.restore()
    assert_same(values(ours, optimizers[0]), values(theirs, optimizers[1]))
    step.close()


def test_micro_batches_are_refused_in_a_sentence() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    batch = torch.randn(4, 4), torch.randint(2, (4,))
    with pytest.raises(UnsupportedStrategy, match="summed over micro-batches; leave deferred_share out"):
        membench.compile(
            network, nn.functional.cross_entropy, batch, strategy=ZeroInfinity(deferred_share=1.0), optimizer="adam",
            micro_batch=2,
        )  # fmt: skip
