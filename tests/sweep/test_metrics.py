"""Metrics of a simulated cell: memory, copies and power."""

from typing import Any

from membench.core import configuration
from membench.sweep.cell import run_cell


def _metrics(strategy: str, *, device: str = "k40_modnn", **options: Any) -> dict[str, float]:
    cell = {
        "model": configuration.read("model", "cifar10_quick"),
        "batch_size": 8,
        "strategy": configuration.read("strategy", strategy) | options,
        "framework": configuration.read("framework", "modnn"),
        "device": configuration.read("device", device),
        "cluster": configuration.read("cluster", "one"),
        "backend": {"name": "simulated"},
        "seed": 0,
        "budget": None,
    }
    return run_cell(cell).metrics


def test_a_bound_without_resident_weights_is_that_of_the_largest_task() -> None:
    """The first pooling's backward: its input of 32 x 32 and its output of a quarter, each with its gradient."""
    metrics = _metrics("network_wide", algorithms="memory")
    maps_bytes = 4 * 8 * 32 * 32 * 32
    assert metrics["neediest_task_bytes"] == 2 * (maps_bytes + maps_bytes // 4)
    assert metrics["neediest_task_bytes"] < metrics["lower_bound_bytes"] <= metrics["required_memory_bytes"]


def test_transferred_is_what_goes_both_ways() -> None:
    metrics = _metrics("vdnn_all")
    assert metrics["transferred_bytes"] == metrics["offloaded_bytes"] + metrics["prefetched_bytes"] > 0
    assert _metrics("eager")["transferred_bytes"] == 0


def test_power_is_given_for_devices_with_known_power() -> None:
    power = configuration.load("device", "k40_modnn").power
    metrics = _metrics("vdnn_all")
    assert power.awake_w < metrics["average_power_w"] < metrics["maximum_power_w"]
    assert metrics["maximum_power_w"] <= power.compute_w + 2 * power.copy_w
    assert "average_power_w" not in _metrics("vdnn_all", device="k40m")
