from pathlib import Path
from typing import Any

from membench.record import Outcome, Record
from membench.suite.records import Records
from tests.suite.jobs import record_of


def _cell(name: str) -> dict[str, Any]:
    return {"model": {"name": name}, "batch_size": 4, "strategy": {"_target_": "a.Eager"}}


class Runner:
    def __init__(self, outcome: Outcome = Outcome.OK) -> None:
        self.outcome = outcome
        self.ran: list[str] = []

    def __call__(self, cell: dict[str, Any]) -> Record:
        self.ran.append(cell["model"]["name"])
        return record_of(cell, self.outcome, peak_memory_bytes=1e6, images_per_s=7.0)


def test_a_sweep_that_was_stopped_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path, first, second = tmp_path / "gpu" / "records.jsonl", Runner(), Runner()
    made = [Records(path, first).run(_cell(name)) for name in ("a", "b")]
    again = Records(path, second)
    assert [again.run(_cell(name)) for name in ("a", "b")] == made
    assert again.run(_cell("c")).metrics["images_per_s"] == 7.0
    assert (first.ran, second.ran) == (["a", "b"], ["c"])
    assert len(path.read_text().splitlines()) == 3


def test_what_failed_is_run_again_and_what_does_not_fit_is_not(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    for outcome, times in ((Outcome.FAILED, 2), (Outcome.OUT_OF_MEMORY, 1)):
        runner = Runner(outcome)
        for _ in range(2):
            assert Records(path, runner).run(_cell(str(outcome))).outcome is outcome
        assert len(runner.ran) == times
