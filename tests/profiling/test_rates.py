import pytest
import torch
import yaml

from membench.cli.main import main
from membench.core.configuration import instantiate
from membench.core.device import DeviceProfile
from membench.profiling.link import Link
from membench.profiling.rates import device_yaml

LINK = Link(5.5e10, 5.4e10, 4.8e10, 4.7e10, 8.0e-6)
PROFILE = DeviceProfile(
    "nvidia_h999", 150_000_000_000, 5.1e13, 4.2e12, 5.4e10, 5.5e10, 8.0e-6, True, multiprocessors=144
)


def test_a_measured_device_reads_back_as_it_was_written() -> None:
    text = device_yaml(PROFILE, LINK, {"device": "NVIDIA H999", "driver": "580", "cuda": "13.2"})
    assert text.startswith("# NVIDIA H999, measured: driver 580, CUDA 13.2\n")
    values = yaml.safe_load(text)
    assert "4.700e+10 with the other way" in text
    assert all("  # " in line for line in text.splitlines()[4:])  # where each number is from
    numbers = {
        k: float(v) if isinstance(v, str) and "e" in v and k.endswith("_s") else v for k, v in values.items()
    }
    assert instantiate(numbers) == PROFILE


def test_a_link_that_moves_no_more_in_both_directions_is_not_full_duplex() -> None:
    assert LINK.full_duplex
    assert not Link(5.5e10, 5.4e10, 2.8e10, 2.7e10, 8.0e-6).full_duplex


def test_without_a_gpu_nothing_is_calibrated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["calibrate", "device=cuda"]) == 2
    assert "needs a GPU, and torch sees none" in capsys.readouterr().err
