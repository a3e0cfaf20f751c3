"""Steps on the CPU whose optimizer keeps its states on a disk: the same weights and states, whatever fails."""

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from errno import EIO
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from membench.capture.capture import Captures
from membench.core.errors import DiskFailed, InfeasibleSchedule, MembenchError
from membench.core.graph.schedule import LOAD_STREAM, STORE_STREAM, Drop, Load, Schedule, Store
from membench.core.step.optimizer import WeightUpdate
from membench.core.step.workload import Workload
from membench.planning.rewrites.update import updated_workload
from membench.steps.compile import build_step
from membench.steps.request import StepRequest
from membench.strategies.base import Strategy
from membench.strategies.ratel import Ratel
from membench.strategies.zero_infinity import ZeroInfinity
from tests.helpers.networks.contract import COST
from tests.helpers.steps.disk import host_peak_bytes, layers
from tests.helpers.steps.host_updates import HostUpdates
from tests.helpers.steps.updates import EVERY_OPTIMIZER, Values, assert_same, plain_training, same, values

MAKERS = {
    **{name: make for name, make in EVERY_OPTIMIZER.items() if name not in ("SGD", "Adafactor")},
    "AdamW, fused": partial(torch.optim.AdamW, fused=True),
}
"""Every optimizer with states, which are all in host memory at once if it updates all weights at once (Adafactor)."""
QUICK = ("momentum", "AdamW, fused")
STEPS = 3
UPDATES = HostUpdates()


@pytest.fixture(autouse=True)
def small_blocks_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("membench.planning.host_memory.disk.LEAST_BYTES", 1)


@pytest.fixture
def work() -> Workload:
    return layers()


def compiled(
    work: Workload, optimizer: torch.optim.Optimizer, folder: Path, host_memory_bytes: int, strategy: Strategy
) -> Any:
    cost, by = copy(COST), WeightUpdate(optimizer)  # operators have been measured
    cost.host_memory_bytes, cost.disk_folder = host_memory_bytes, folder
    return build_step(Captures(updated_workload(work, by)), cost, StepRequest(strategy, optimizer=by))


def on_disk(work: Workload, optimizer: torch.optim.Optimizer, folder: Path, strategy: Strategy = UPDATES) -> Any:
    """Return a step in the least host memory."""
    with pytest.raises(
        InfeasibleSchedule, match="with this strategy; raise host_memory, or lower the batch size"
    ) as found:
        compiled(work, optimizer, folder, host_memory_bytes=1, strategy=strategy)
    step = compiled(work, optimizer, folder, found.value.needed_bytes, strategy)
    [run] = step.plan
    assert host_peak_bytes(run.schedule) == found.value.needed_bytes
    assert visits(run.schedule, Load) == visits(run.schedule, Store) == visits(run.schedule, Drop) > 0
    return step


def visits(schedule: Schedule, kind: type[Load] | type[Store] | type[Drop]) -> int:
    """Return how many instructions of a kind are of blocks whose home is the disk."""
    moved = (item.block for item in schedule.instructions if isinstance(item, kind))
    return sum(schedule.graph.blocks[block].is_on_disk for block in moved)


def run(work: Workload, step: Callable[..., Tensor], seed: int) -> None:
    torch.manual_seed(seed)
    step(work.inputs, work.targets)


def plain(work: Workload, make: Callable[..., torch.optim.Optimizer]) -> list[Values]:
    """Return the values after each step of PyTorch's own loop."""
    return [values(module, optimizer) for _, module, optimizer in plain_training(work, make, STEPS)]


def held_bytes(optimizer: torch.optim.Optimizer) -> int:
    return sum(
        value.nbytes for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)
    )


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, call: str, after: int) -> Iterator[None]:
    """Let that many requests of one kind through, and the next one fail."""
    real, left = getattr(os, call), [after]

    def request(file: int, views: list[Any], offset: int) -> int:
        left[0] -= 1
        if left[0] == -1:
            raise OSError(EIO, os.strerror(EIO))
        return int(real(file, views, offset))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, request)
        yield


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.exhaustive) for n in MAKERS])
def test_weights_and_states_are_those_of_pytorch(name: str, work: Workload, tmp_path: Path) -> None:
    expected = plain(work, MAKERS[name])
    optimizer = MAKERS[name](work.module.parameters())
    step = on_disk(work, optimizer, tmp_path)
    for seed in range(STEPS):
        run(work, step, seed)
        assert held_bytes(optimizer) == 0
    step.close()
    assert held_bytes(optimizer) > 0
    assert_same(values(work.module, optimizer), expected[-1])


@pytest.mark.parametrize("strategy", [ZeroInfinity(), Ratel()], ids=["zero_infinity", "ratel"])
def test_published_methods_are_exact_with_their_states_on_the_disk(
    strategy: Strategy, work: Workload, tmp_path: Path
) -> None:
    expected = plain(work, MAKERS["AdamW"])
    optimizer = MAKERS["AdamW"](work.module.parameters())
    step = on_disk(work, optimizer, tmp_path, strategy)
    for seed in range(STEPS):
        run(work, step, seed)
    step.close()
    assert_same(values(work.module, optimizer), expected[-1])


def test_states_can_be_read_and_replaced_between_steps(work: Workload, tmp_path: Path) -> None:
    make = MAKERS["AdamW"]
    expected = plain(work, make)
    optimizer = make(work.module.parameters())
    step = on_disk(work, optimizer, tmp_path)
    run(work, step, 0)
    assert_same(values(work.module, optimizer), expected[0])  # by `state_dict`
    assert held_bytes(optimizer) > 0
    run(work, step, 1)
    assert held_bytes(optimizer) == 0
    step.restore()
    saved = deepcopy(optimizer.state_dict())
    weights = deepcopy(work.module.state_dict())
    run(work, step, 5)
    optimizer.load_state_dict(saved)
    work.module.load_state_dict(weights)
    run(work, step, 2)
    assert_same(values(work.module, optimizer), expected[2])
    step.close()


def test_a_measured_step_has_times_of_the_disk_and_changes_nothing(work: Workload, tmp_path: Path) -> None:
    make = MAKERS["AdamW"]
    expected = plain(work, make)
    optimizer = make(work.module.parameters())
    step = on_disk(work, optimizer, tmp_path)
    run(work, step, 0)
    measured = step.measure()
    assert measured.timelines[0].busy_s(LOAD_STREAM) > 0
    assert measured.timelines[0].busy_s(STORE_STREAM) > 0
    assert_same(values(work.module, optimizer), expected[0])
    step.close()


@pytest.mark.parametrize("call", ["pwritev", "preadv"])
@pytest.mark.parametrize("after", [3, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (0, 8))])
def test_after_a_failure_each_weight_fits_its_states(
    call: str, after: int, work: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = MAKERS["AdamW"]
    expected = plain(work, make)
    optimizer = make(work.module.parameters())
    step = on_disk(work, optimizer, tmp_path)
    run(work, step, 0)
    with (
        failing(monkeypatch, call, after),
        pytest.raises(DiskFailed, match=r"the disk could not .*: Input/output error; name") as found,
    ):
        run(work, step, 1)
    assert "\n" not in str(found.value)
    after_it = values(work.module, optimizer)
    updated = {name: same(after_it[name], expected[1][name]) for name in after_it}
    for name, is_updated in updated.items():
        assert is_updated or same(after_it[name], expected[0][name]), name
    assert call == "pwritev" or not all(updated.values())
    run(work, step, 2)
    step.close()


def test_a_failed_step_can_be_taken_back_and_run_again(
    work: Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = MAKERS["momentum"]
    expected = plain(work, make)
    optimizer = make(work.module.parameters())
    step = on_disk(work, optimizer, tmp_path)
    run(work, step, 0)
    saved, weights = deepcopy(optimizer.state_dict()), deepcopy(work.module.state_dict())
    with failing(monkeypatch, "pwritev", 2), pytest.raises(DiskFailed):
        run(work, step, 1)
    optimizer.load_state_dict(saved)
    work.module.load_state_dict(weights)
    for seed in (1, 2):
        run(work, step, seed)
    step.close()
    assert_same(values(work.module, optimizer), expected[2])


def test_a_disk_without_room_is_found_when_the_step_is_compiled(work: Workload, tmp_path: Path) -> None:
    optimizer = MAKERS["AdamW"](work.module.parameters())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**12, hard))
    try:
        with pytest.raises(DiskFailed, match="could not reserve .* in .*: File too large; make room there"):
            on_disk(work, optimizer, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_two_steps_share_an_optimizer_only_after_restore(work: Workload, tmp_path: Path) -> None:
    make = MAKERS["momentum"]
    expected = plain(work, make)
    optimizer = make(work.module.parameters())
    one, other = (on_disk(work, optimizer, tmp_path) for _ in range(2))
    run(work, one, 0)
    with pytest.raises(MembenchError, match="another step keeps it on its disk; call restore"):
        run(work, other, 1)
    one.restore()
    run(work, other, 1)
    other.restore()
    run(work, one, 2)
    one.close()
    other.close()
    assert_same(values(work.module, optimizer), expected[2])
