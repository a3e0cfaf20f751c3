"""Steps on the CPU whose optimizer keeps its states on a disk: the same weights and states, whatever fails."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

import membench
from membench.core.errors import InfeasibleSchedule
from membench.core.schedule import Load, Store
from membench.core.workload import Workload
from tests.helpers.disk import host_peak_bytes
from tests.helpers.host_updates import HostUpdates
from tests.helpers.networks import NETWORKS, workload
from tests.helpers.updates import first_difference, plain_steps, run_steps

MAKERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
}


@pytest.fixture(autouse=True)
def small_blocks_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("membench.planning.disk.LEAST_BYTES", 1)


def compiled(work: Workload, optimizer: torch.optim.Optimizer, folder: Path, **options: Any) -> Any:
    given = {"strategy": HostUpdates(), "optimizer": optimizer, "disk": folder} | options
    return membench.compile(work.module, work.loss, (work.inputs, work.targets), **given)


def least_bytes(work: Workload, optimizer: torch.optim.Optimizer, folder: Path) -> int:
    with pytest.raises(InfeasibleSchedule) as found:
        compiled(work, optimizer, folder, host_memory=1)
    return found.value.needed_bytes


@pytest.mark.parametrize("name", MAKERS)
def test_exact(name: str, tmp_path: Path) -> None:
    original = workload(NETWORKS["lstm_cnn"], "lstm_cnn")
    expected = plain_steps(original, MAKERS[name])
    work = deepcopy(original)
    optimizer = MAKERS[name](work.module.parameters())
    least = least_bytes(work, optimizer, tmp_path)
    step = compiled(work, optimizer, tmp_path, host_memory=least)
    [run] = step.plan
    print(least, host_peak_bytes(run.schedule), [sum(isinstance(i, k) for i in run.schedule.instructions) for k in (Load, Store)])
    run_steps(work, step)
    assert not first_difference(work.module, expected)
    print([v.shape for s in optimizer.state.values() for v in s.values()][:5])
    optimizer.state_dict()
    print([v.shape for s in optimizer.state.values() for v in s.values()][:5])
    run_steps(work, step)
    step.close()
