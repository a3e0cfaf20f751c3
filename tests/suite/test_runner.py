"""The runner: workers, order, failures, deaths, and the search for the largest batch."""

from typing import Any

from membench.record import Outcome, Record
from membench.suite.runner import run_all, run_largest
from tests.suite import jobs


def _cell(model: str, batch_size: int | str = 32, strategy: str = "eager") -> dict[str, Any]:
    return {
        "model": {"name": model},
        "batch_size": batch_size,
        "strategy": {"_target_": strategy},
        "backend": {"name": "simulated"},
    }


def _size(configuration: dict[str, Any]) -> float:
    return len(configuration["model"]["name"])


def test_records_come_back_in_the_order_asked_for_and_equal_cells_run_once() -> None:
    cells = [_cell("a"), _cell("bbb"), _cell("cc"), _cell("a"), _cell("bbb", strategy="other")]
    records = run_all(cells, workers=2, size=_size, run_job=jobs.answer)
    assert [record.configuration for record in records] == cells
    assert [record.metrics["metric"] for record in records] == [1, 3, 2, 1, 3]
    assert records[0] is records[3]
    again = run_all(cells[::-1], workers=1, size=lambda _: 0, run_job=jobs.answer)
    assert again[::-1] == records


def test_a_job_that_raises_is_a_failed_record() -> None:
    records = run_all([_cell("good"), _cell("bad")], workers=2, size=_size, run_job=jobs.raise_on_bad)
    assert [record.outcome for record in records] == [Outcome.OK, Outcome.FAILED]
    assert records[1].reason == "RuntimeError: no such luck"


def test_a_worker_that_dies_takes_only_its_own_job_along() -> None:
    cells = [_cell("bad"), *(_cell(f"good{number}") for number in range(4))]
    records = run_all(cells, workers=2, size=_size, run_job=jobs.die_on_bad)
    assert [record.outcome for record in records] == [Outcome.FAILED, *[Outcome.OK] * 4]
    assert "died" in records[0].reason


def test_largest_batch_is_found_and_its_record_returned() -> None:
    def fits_2100(configuration: dict[str, Any]) -> Record:
        fits = configuration["batch_size"] <= 2100
        return jobs.record_of(configuration, Outcome.OK if fits else Outcome.OUT_OF_MEMORY)

    record = run_largest(_cell("net", "largest"), fits_2100)
    assert record.outcome is Outcome.OK
    assert record.configuration["batch_size"] == 2096  # the largest multiple of 16


def test_a_search_that_fails_for_another_reason_is_not_taken_for_a_full_device() -> None:
    record = run_largest(_cell("net", "largest"), lambda cell: jobs.record_of(cell, Outcome.FAILED))
    assert record.outcome is Outcome.FAILED


def test_a_network_that_never_fits_is_out_of_memory() -> None:
    record = run_largest(_cell("net", "largest"), lambda cell: jobs.record_of(cell, Outcome.OUT_OF_MEMORY))
    assert record.outcome is Outcome.OUT_OF_MEMORY
