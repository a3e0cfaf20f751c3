from dataclasses import replace
from pathlib import Path

import pytest
import torch

from membench.cli.main import main
from membench.core.configuration import instantiate, read_options
from membench.core.hardware.device import DeviceProfile
from membench.profiling.link import Link
from membench.profiling.rates import device_yaml

LINK = Link(5.5e10, 5.4e10, 4.8e10, 4.7e10, 8.0e-6, 1.1e10, 1.2e10)
PROFILE = DeviceProfile(
    "nvidia_h999", 150_000_000_000, 5.1e13, 4.2e12, 5.4e10, 5.5e10, 8.0e-6, True, multiprocessors=144,
    compute_capability=12.1, l2_bytes=50_000_000, context_bytes=500_000_000, link_generation=5, link_lanes=16,
    pageable_host_to_device_bytes_per_s=1.2e10, pageable_device_to_host_bytes_per_s=1.1e10,
    precision_ops_per_s={"tf32": 4.0e14, "bf16": 8.0e14, "fp16": 8.1e14},
)  # fmt: skip
OLDER = replace(
    PROFILE, compute_capability=None, context_bytes=None, link_generation=None, link_lanes=None, precision_ops_per_s={},
)  # fmt: skip
"""Before tensor cores, not NVIDIA's, and with a driver that reports neither the process nor the link."""


@pytest.mark.parametrize("profile", [PROFILE, OLDER])
def test_a_measured_device_reads_back_as_it_was_written(profile: DeviceProfile, tmp_path: Path) -> None:
    text = device_yaml(profile, LINK, {"device": "NVIDIA H999", "driver": "580", "cuda": "13.2"})
    assert text.startswith("# NVIDIA H999, measured: driver 580, CUDA 13.2\n")
    assert "4.700e+10 with the other way" in text
    assert ("compute_capability: 12.1  # " in text) == (profile is PROFILE)
    numbers = [line for line in text.splitlines()[4:] if not line.endswith(":")]
    assert all("  # " in line for line in numbers)  # where each number is from
    (tmp_path / "device.yaml").write_text(text)
    assert instantiate(read_options(tmp_path / "device.yaml")) == profile


def test_a_link_that_moves_no_more_in_both_directions_is_not_full_duplex() -> None:
    assert LINK.full_duplex
    assert not Link(5.5e10, 5.4e10, 2.8e10, 2.7e10, 8.0e-6, 1e10, 1e10).full_duplex


def test_without_a_gpu_nothing_is_calibrated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["calibrate", "device=cuda"]) == 2
    assert "needs a GPU, and torch sees none" in capsys.readouterr().err
