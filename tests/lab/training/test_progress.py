"""The expected time: extrapolated from a few steps, on a terminal only."""

import sys
from itertools import count

import pytest

from membench.lab.training import progress as module
from membench.lab.training.progress import TIMED_STEPS, Progress
from membench.lab.training.recipe import Recipe

RECIPE = Recipe(epochs=40, batch_size=10, learning_rate=0.1, momentum=0.0, weight_decay=0.0, seed=0)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_expected_time_is_printed_once_and_on_a_terminal_only(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = count(step=TIMED_STEPS)  # from one reading of the clock to the next, a second for each timed step
    monkeypatch.setattr(module.time, "perf_counter", lambda: float(next(seconds)))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with Progress(RECIPE, images=25, synchronize=lambda: None) as progress:
        for _ in range(3 * TIMED_STEPS):
            progress.step()
    printed = capsys.readouterr()
    assert printed.out == ""
    # 40 epochs of 3 steps, one second each
    assert printed.err.count("about 120 s for 40 epochs") == is_terminal
    assert is_terminal or printed.err == ""
