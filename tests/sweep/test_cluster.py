"""Simulated cells on several devices."""

from typing import Any

import pytest

from membench.core import configuration
from membench.core.record import Outcome, Record
from membench.sweep.cells.run import run_cells

DEVICES = 4
SHARE = 32


def cell(cluster: dict[str, Any], batch_size: int, strategy: str = "vdnn_all", **options: Any) -> dict[str, Any]:
    return {
        "model": configuration.read("model", "alexnet"),
        "batch_size": batch_size,
        "strategy": configuration.read("strategy", strategy),
        "framework": configuration.read("framework", "modnn"),
        "device": configuration.read("device", "k40_modnn"),
        "cluster": cluster,
        "backend": {"name": "simulated"},
        "seed": 0,
        "exchange": "as_made",
        **options,
    }


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    four, one = configuration.read("cluster", "modnn_k40x4"), configuration.read("cluster", "one")
    cells = {
        "one": cell(one, SHARE),
        "one, eager": cell(one, SHARE, "eager"),
        "four": cell(four, DEVICES * SHARE),
        "four, eager": cell(four, DEVICES * SHARE, "eager"),
        "four, eager, at the end": cell(four, DEVICES * SHARE, "eager", exchange="at_end"),
        "four, eager, many cores": cell(four | {"cores": 20}, DEVICES * SHARE, "eager"),
        "four, own links": cell(four | {"devices_per_link": 1}, DEVICES * SHARE),
        "four, in micro-batches": cell(four, DEVICES * SHARE, micro_batch=SHARE // 4),
        "no equal shares": cell(four, DEVICES * SHARE + 1),
    }
    return dict(zip(cells, run_cells(cells.values()), strict=True))


def test_memory_is_that_of_a_share_and_images_are_all(records: dict[str, Record]) -> None:
    one, four = records["one"].metrics, records["four"].metrics
    assert four["required_memory_bytes"] == one["required_memory_bytes"]
    assert four["images_per_s"] == pytest.approx(DEVICES * SHARE / four["step_time_s"])


def test_a_shared_link_makes_copies_as_many_times_longer(records: dict[str, Record]) -> None:
    copy_time_s = {name: records[name].metrics["copy_time_s"] for name in ("one", "four", "four, own links")}
    assert copy_time_s["four"] == pytest.approx(DEVICES * copy_time_s["one"], rel=0.01)
    assert copy_time_s["four, own links"] == pytest.approx(copy_time_s["one"])


def test_gradients_that_leave_as_they_are_made_hide_behind_tasks_unless_a_core_is_slow(
    records: dict[str, Record],
) -> None:
    alone, one_core, many_cores, at_end = (
        records[name].metrics["step_time_s"]
        for name in ("one, eager", "four, eager", "four, eager, many cores", "four, eager, at the end")
    )
    assert alone < many_cores < at_end
    assert many_cores < one_core
    assert records["four, eager"].metrics["local_step_time_s"] == pytest.approx(alone)


def test_micro_batches_exchange_once(records: dict[str, Record]) -> None:
    exchanged, whole = records["four, in micro-batches"].metrics, records["four"].metrics
    assert exchanged["micro_batches"] == 4
    assert exchanged["exchange_time_s"] < 2 * whole["exchange_time_s"]
    assert exchanged["exchange_time_s"] < exchanged["step_time_s"]


def test_a_batch_that_does_not_divide_is_refused(records: dict[str, Record]) -> None:
    record = records["no equal shares"]
    assert record.outcome is Outcome.FAILED
    assert "a batch of 129 cannot be divided into 4 equal shares; use a multiple of 4" in record.reason
