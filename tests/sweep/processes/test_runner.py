"""The runner: order, equal cells, threads that are stopped, and the search for the largest batch."""

import threading
from typing import Any

import pytest

from membench.core.record import Configuration, Outcome, Record
from membench.sweep.largest_batch import run_largest
from membench.sweep.processes.runner import run_all
from tests.helpers.sweep import jobs


def _cell(model: str, batch_size: int | str = 32, strategy: str = "eager") -> dict[str, Any]:
    return {
        "model": {"name": model},
        "batch_size": batch_size,
        "strategy": {"_target_": strategy},
        "backend": {"name": "simulated"},
    }


def _size(configuration: dict[str, Any]) -> float:
    return len(configuration["model"]["name"])


def _run_all(cells: list[Configuration], workers: int) -> list[Record]:
    return run_all(cells, jobs.answer, workers=workers, size=_size, stop=lambda: None)


def test_records_come_back_in_the_order_asked_for_and_equal_cells_run_once() -> None:
    cells = [_cell("a"), _cell("bbb"), _cell("cc"), _cell("a"), _cell("bbb", strategy="other")]
    records = _run_all(cells, workers=2)
    assert [record.configuration for record in records] == cells
    assert [record.metrics["metric"] for record in records] == [1, 3, 2, 1, 3]
    assert records[0] is records[3]
    assert _run_all(cells[::-1], workers=1)[::-1] == records


def test_an_interrupt_stops_the_other_threads_and_reaches_the_caller() -> None:
    stopped = threading.Event()

    def run(cell: Configuration) -> Record:
        if cell["model"]["name"] == "interrupts":
            raise KeyboardInterrupt
        assert stopped.wait(timeout=10)
        raise InterruptedError

    with pytest.raises(KeyboardInterrupt):
        run_all([_cell("interrupts"), _cell("waits")], run, workers=2, size=_size, stop=stopped.set)
    assert stopped.is_set()


def test_largest_batch_is_found_and_its_record_returned() -> None:
    def fits_2100(configuration: dict[str, Any]) -> Record:
        fits = configuration["batch_size"] <= 2100
        return jobs.record_of(configuration, Outcome.OK if fits else Outcome.OUT_OF_MEMORY)

    record = run_largest(_cell("net", "largest"), fits_2100)
    assert record.outcome is Outcome.OK
    assert record.configuration["batch_size"] == 2096  # the largest multiple of 16


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.TIMEOUT, Outcome.UNSUPPORTED])
def test_a_search_that_fails_for_another_reason_is_not_taken_for_a_full_device(outcome: Outcome) -> None:
    record = run_largest(_cell("net", "largest"), lambda cell: jobs.record_of(cell, outcome))
    assert record.outcome is outcome


def test_a_network_that_never_fits_is_out_of_memory() -> None:
    record = run_largest(_cell("net", "largest"), lambda cell: jobs.record_of(cell, Outcome.OUT_OF_MEMORY))
    assert record.outcome is Outcome.OUT_OF_MEMORY
