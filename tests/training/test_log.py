"""The log of trainings: what was logged stays, through interrupts and damage."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from membench.core.errors import MembenchError
from membench.core.record import Configuration, Record
from membench.training.log import RunLog
from tests.helpers.jobs import record_of

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
def test_a_damaged_last_line_is_refused_with_what_to_do_and_nothing_is_lost(
    tmp_path: Path, line: bytes
) -> None:
    _log(path := tmp_path / "training.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole + line)
    with pytest.raises(
        MembenchError, match=r"line 2 of .*training.jsonl is not a record of a training; delete the line"
    ):
        RunLog(path)
    assert path.read_bytes() == whole + line
    path.write_bytes(whole)
    assert RunLog(path).find(FIRST) == record_of(FIRST)
