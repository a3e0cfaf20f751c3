import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import membench
from membench.execution import measurement
from membench.execution.measurement import Throughput, cpu_peak_bytes, throughput

COMPILES = """
import torch, membench
module, batch = torch.nn.Linear(4, 4), (torch.ones(2, 4), torch.ones(2, 4))
step = membench.compile(module, torch.nn.functional.mse_loss, batch)
step(*batch)
step.measure()
"""


MEASURES_AMID_GARBAGE = """
import gc, torch
from membench.execution.measurement import cpu_peak_bytes
def run():
    gc.set_threshold(1, 1, 1)
    [[] for _ in range(100)]
garbage = [torch.empty(5000)]
garbage.append(garbage)
del garbage
cpu_peak_bytes(run)
assert gc.isenabled()
"""


def test_a_throughput_is_the_median_window_with_its_spread() -> None:
    samples = Throughput(images_per_step=8, steps_per_window=10, window_times_s=(1.0, 2.0, 4.0))
    assert samples.step_time_s == pytest.approx(0.2)
    assert samples.images_per_s == pytest.approx(40.0)
    assert samples.samples_images_per_s == pytest.approx((80.0, 40.0, 20.0))
    assert samples.interquartile_images_per_s == pytest.approx(30.0)
    assert Throughput(8, 1, (1.0,)).interquartile_images_per_s == 0.0


def test_each_window_runs_its_steps_between_two_synchronisations(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    monkeypatch.setattr(measurement, "synchronize", lambda device: log.append("synchronize"))
    samples = throughput(
        lambda: log.append("step"), torch.device("cpu"), images_per_step=2, steps_per_window=3, windows=2
    )
    assert log == 2 * ["synchronize", "step", "step", "step", "synchronize"]
    assert len(samples.window_times_s) == 2


@pytest.mark.slow
def test_a_program_that_compiles_and_measures_prints_nothing() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "KINETO_LOG_LEVEL"}
    ended = subprocess.run(
        [sys.executable, "-c", COMPILES], env=environment, capture_output=True, text=True, check=True
    )
    assert (ended.stdout, ended.stderr) == ("", "")


@pytest.mark.slow
def test_garbage_of_earlier_work_is_not_reported_by_the_allocator() -> None:
    ended = subprocess.run([sys.executable, "-c", MEASURES_AMID_GARBAGE], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("", "")


def test_a_profile_of_the_user_s_keeps_its_events() -> None:
    module, batch = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), 2 * (torch.ones(2, 4),)
    loss = nn.functional.mse_loss
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.ones(3).exp()
        step = membench.compile(module, loss, batch)
        peak_bytes = step.measure().peak_bytes
        torch.ones(3).sin()
    assert {"aten::exp", "aten::sin"} <= {event.name for event in profile.events()}
    assert peak_bytes == step.predicted_peak_bytes == membench.compile(module, loss, batch).measure().peak_bytes


def test_the_peak_of_the_cpu_counts_what_is_held_together() -> None:
    def run() -> None:
        kept = torch.empty(3000, dtype=torch.uint8)
        torch.empty(1000, dtype=torch.uint8)
        torch.empty_like(kept)

    assert cpu_peak_bytes(run) == 6000
