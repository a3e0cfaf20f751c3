import pytest
import torch

from membench.execution import measurement
from membench.execution.measurement import Throughput, throughput


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
