"""The GPU at hand is found among the described devices by its name and memory, or refused in one line."""

import pytest

from membench.core.errors import MembenchError
from membench.core.units import GIB
from membench.sweep.this_device import described_as, this_device

PRODUCTS = [
    ("NVIDIA GeForce RTX 3090", 23.7, "rtx3090"),
    ("NVIDIA A100-SXM4-40GB", 39.5, "a100_40gb"),
    ("NVIDIA A100 80GB PCIe", 79.2, "a100_80gb"),
    ("NVIDIA H200", 139.8, "h200"),
    ("Tesla T4", 14.6, "t4"),
    ("NVIDIA L4", 22.0, "l4"),
    ("Tesla V100-PCIE-32GB", 31.7, "v100"),
    ("NVIDIA GeForce RTX 2080 Ti", 10.8, "rtx2080ti"),
]


@pytest.mark.parametrize(("product", "gib", "name"), PRODUCTS)
def test_a_described_card_is_found_and_has_the_memory_of_its_driver(product: str, gib: float, name: str) -> None:
    memory_bytes = int(gib * GIB)
    found = described_as(product, memory_bytes)
    assert (found.name, found.memory_bytes) == (name, memory_bytes)


@pytest.mark.parametrize(
    ("product", "gib"),
    [
        ("NVIDIA GeForce RTX 3060 Ti", 8),
        ("NVIDIA GeForce RTX 3070 Ti", 8),
        ("NVIDIA RTX A4500", 20),
        ("NVIDIA T400", 2),
    ],
)
def test_another_card_is_refused_with_those_that_there_are(product: str, gib: int) -> None:
    with pytest.raises(MembenchError, match=f"{product} of .* is not described in conf/device, which has .*rtx3090"):
        described_as(product, gib * GIB)


def test_a_machine_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("membench.sweep.this_device.visible_gpus", list)
    with pytest.raises(MembenchError, match="the GPU at hand, and there is none; name a card"):
        this_device()
