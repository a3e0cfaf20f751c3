"""The log of trainings: what was logged stays, through interrupts and damage."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from membench.core.record import Configuration, Record
from membench.lab.training.log import RunLog
from tests.helpers.sweep.jobs import record_of

FIRST, SECOND = ({"model": {"name": name}} for name in "ab")


def _log(path: Path) -> RunLog:
    RunLog(path).run(FIRST, record_of, lambda _: "done")
    return RunLog(path)


def test_an_interrupted_run_leaves_those_before_it(tmp_path: Path) -> None:
    def interrupted(_: Configuration) -> Record:
        raise KeyboardInterrupt

    log = _log(path := tmp_path / "training.jsonl")
    with pytest.raises(KeyboardInterrupt):
        log.run(SECOND, interrupted, str)
    again = RunLog(path)
    assert (again.find(FIRST), again.find(SECOND)) == (record_of(FIRST), None)
    assert again.run(FIRST, interrupted, str) == record_of(FIRST)  # not run again


LINE = json.dumps(asdict(record_of(SECOND))).encode()


@pytest.mark.parametrize(
    "line",
    [
        LINE[: len(LINE) // 2],
        b"{}",
        b"[" * 100_000,
        b"\xff\xfe\x00",
        LINE.replace(b'"reason"', b'"cause"'),
        LINE.replace(b'"metrics": {', b'"metrics": {"x": [], '),
    ],
    ids=["torn", "empty", "deep", "binary", "of another version", "of another type"],
)
def test_the_training_of_a_damaged_line_runs_again_as_a_damaged_record_of_a_sweep_does(
    tmp_path: Path, line: bytes
) -> None:
    _log(path := tmp_path / "training.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole + line)
    log = RunLog(path)
    assert log.find(FIRST) == record_of(FIRST)
    assert log.find(SECOND) is None
    log.run(SECOND, record_of, lambda record: "again")
    assert path.read_bytes().startswith(whole + line + b"\n")
    assert RunLog(path).find(FIRST) == record_of(FIRST)
    assert RunLog(path).find(SECOND) == record_of(SECOND)
