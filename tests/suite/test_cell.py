"""How a cell ends that raises: what the user can mend in the error's own words, all else with its kind and a traceback."""

import pytest

from membench.errors import MembenchError, OutOfMemory
from membench.record import Outcome
from membench.suite.cell import outcome_of


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
    assert outcome_of(error) == expected
    assert bool(capsys.readouterr().err) is traced
