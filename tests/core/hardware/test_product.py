"""The text of torch.cuda.get_device_name() names a device, and only that one."""

import pytest

from membench.core.hardware.device import as_device
from membench.core.hardware.product import device_named


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100_80gb_sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100_40gb"),
        ("NVIDIA A100 80GB PCIe", "a100_80gb"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100_pcie"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
        ("NVIDIA GeForce GTX 1080 Ti", "gtx1080_ti"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("Tesla T4", "t4"),
    ],
)
def test_a_product_name_is_that_of_a_device(product: str, name: str) -> None:
    assert device_named(product) == name
    assert as_device(product).name == name


@pytest.mark.parametrize(
    "product",
    [
        "NVIDIA H100 NVL",  # 94 GB
        "Tesla V100-SXM2-16GB",  # the one that is described has 32 GB
        "NVIDIA GeForce RTX 3060 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA A10G",
        "Quadro RTX 6000",
    ],
)
def test_another_card_is_not_taken_for_one(product: str) -> None:
    assert device_named(product) == product
