import re
from typing import Any

import pytest

from membench.core.configuration import read
from membench.core.document import as_text
from membench.core.record import AT_PEAK, Outcome, Record, Source
from membench.core.units import GIB, MIB, parse_bytes
from membench.sweep.cells.run import run_cell
from membench.sweep.results.summary import summary, title
from tests.helpers.sweep.cells import small_cell
from tests.helpers.sweep.jobs import record_of

CONFIGURATION = {
    "model": {"name": "resnet50"},
    "batch_size": 32,
    "strategy": {"_target_": "membench.strategies.eager.Eager"},
    "framework": {"_target_": "membench.frameworks.caffe.Caffe"},
    "device": {"name": "k40m"},
    "cluster": {},
    "backend": {"name": "simulated"},
}
METRICS = {
    "required_memory_bytes": 3 * GIB,
    "capacity_bytes": 11 * GIB,
    "weights_at_peak_bytes": 1 * GIB,
    "layers_internals_at_peak_bytes": 1.5 * GIB,
    "framework_at_peak_bytes": 500 * MIB,
    "step_time_s": 0.5,
    "exposed_transfer_s": 0.1,
    "images_per_s": 64.0,
    "offloaded_bytes": MIB,
    "prefetched_bytes": 2 * MIB,
    "transferred_bytes": 3 * MIB,
}


def text_of(record: Record) -> str:
    return as_text(summary(record))


def test_a_lower_bound_is_printed_next_to_the_step_time() -> None:
    bound = {"lower_bound_s": 0.4, "gap": 0.25}
    text = text_of(Record(CONFIGURATION, "hash", Source.SIMULATED, Outcome.OK, "", METRICS, layer_metrics=bound))
    assert re.search(r"lower bound +400 ms; the step takes 25.0% more", text)


def test_a_method_that_rounds_says_so() -> None:
    exact, rounded = (
        text_of(Record(CONFIGURATION, "hash", Source.SIMULATED, Outcome.OK, "", {**METRICS, "rounding": rounding}))
        for rounding in (0.0, 2**-8)
    )
    assert "rounding" not in exact
    assert re.search(r"rounding +stored values differ by up to 0.39%", rounded)


def test_the_summary_of_a_run_has_memory_time_and_transfers() -> None:
    text = text_of(Record(CONFIGURATION, "hash", Source.SIMULATED, Outcome.OK, "", METRICS))
    assert text.splitlines()[0] == "resnet50, batch 32, eager, simulated on k40m under Caffe"
    for expected in (
        "3.0 GB (3,221,225,472 bytes) of 11.0 GB",
        "1.5 GB of layers internals + 1.0 GB of weights + 500.0 MB of framework",
        "500 ms",
        "64.0 samples/s",
        "1.0 MB to the host, 2.0 MB back; 100 ms of it not hidden behind computation",
    ):
        assert expected in text


def test_devices_of_a_cluster_and_processes_are_counted() -> None:
    cluster = CONFIGURATION | {"cluster": {"hosts": 2, "devices_per_host": 4}}
    text = text_of(Record(cluster, "hash", Source.SIMULATED, Outcome.OK, "", METRICS))
    assert text.splitlines()[0] == "resnet50, batch 32, eager, simulated on 8 x k40m under Caffe"
    measured = METRICS | {"processes": 2, "exchange_time_s": 0.25}
    record = Record(CONFIGURATION | {"backend": {"name": "cpu"}}, "hash", Source.MEASURED, Outcome.OK, "", measured)
    assert "2; gradients exchanged in 250 ms" in text_of(record)


def test_a_machine_that_was_chosen_is_named() -> None:
    chosen = CONFIGURATION | {"machine": {"name": "desktop"}}
    assert title(chosen) == "resnet50, batch 32, eager, simulated on k40m in machine desktop under Caffe"


def test_cells_of_a_sweep_over_limits_have_distinct_titles() -> None:
    limited = CONFIGURATION | {"budget": "400 MB", "micro_batch": "fitted"}
    expected = "resnet50, batch 32, eager, budget 400.0 MB, micro-batch fitted, simulated on k40m under Caffe"
    assert title(limited) == expected


def test_the_summary_of_a_run_that_does_not_fit_names_the_needed_memory() -> None:
    metrics = {"required_memory_bytes": 30 * GIB, "capacity_bytes": 11 * GIB, "external_bytes": 1, "overhead_bytes": 1}
    text = text_of(Record(CONFIGURATION, "hash", Source.SIMULATED, Outcome.OUT_OF_MEMORY, "needs more", metrics))
    assert "out of memory: needs more" in text
    assert "30.0 GB (32,212,254,720 bytes) of 11.0 GB" in text
    assert "step time" not in text


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"micro_batch": 2},
        {"strategy": read("strategy", "vdnn_all")},
        {"framework": read("framework", "pytorch"), "optimizer": read("optimizer", "adamw")},
    ],
)
def test_the_parts_of_a_peak_add_up_to_it(changes: dict[str, Any]) -> None:
    record = run_cell(small_cell(**changes))
    [line] = [line for line in text_of(record).splitlines() if "made up of" in line]
    parts = re.findall(r"([\d.]+ [KMG]?B) of", line)
    assert len(parts) > 3
    rounding_bytes = len(parts) * 0.05 * MIB
    peak_bytes = record.metrics["required_memory_bytes"]
    assert abs(sum(map(parse_bytes, parts)) - peak_bytes) <= rounding_bytes
    assert sum(size for name, size in record.metrics.items() if name.endswith(AT_PEAK)) == peak_bytes


def test_a_budget_is_printed_in_bytes_too() -> None:
    limited = record_of(small_cell(budget="200 MB"))
    assert "budget               200.0 MB (209,715,200 bytes)" in text_of(limited)
