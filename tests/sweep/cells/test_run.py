"""Outcomes of cells that raise: users' errors in their own words, others with their kind and place."""

import re

import pytest

from membench.core.errors import MembenchError, OutOfMemory
from membench.core.record import Outcome
from membench.sweep.cells.run import outcome_of


@pytest.mark.parametrize(
    ("error", "expected", "traced"),
    [
        (MembenchError("needs a GPU"), (Outcome.FAILED, "needs a GPU"), False),
        (ValueError("no such luck"), (Outcome.FAILED, "ValueError: no such luck"), True),
        (MemoryError(), (Outcome.OUT_OF_MEMORY, "the machine's memory is used up"), False),
        (
            OutOfMemory(needed_bytes=None, capacity_bytes=1),
            (Outcome.OUT_OF_MEMORY, "the step needs more memory and the device has 1 B"),
            False,
        ),
    ],
)
def test_an_error_is_an_outcome_with_a_reason(
    error: Exception, expected: tuple[Outcome, str], traced: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(type(error)) as raised:
        raise error
    outcome, reason = outcome_of(raised.value)
    place = r" \(test_run\.py, line \d+\)" if traced else ""
    assert outcome is expected[0]
    assert re.fullmatch(re.escape(expected[1]) + place, reason)
    assert bool(capsys.readouterr().err) is traced
