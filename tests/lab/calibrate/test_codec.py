"""The rate of EPMC's serial baseline: a fit on the rows of that baseline only."""

import pytest

from membench.lab.calibrate.codec import _fitted_rows, fit_rate
from membench.lab.papers.reading.loader import load_paper
from tests.helpers.lab.papers import EXPERIMENTS


def test_a_rate_that_explains_the_rows_is_found() -> None:
    shares = [0.01, 0.03, 0.02]
    assert fit_rate([(share, 1 + share / 0.007) for share in shares]) == pytest.approx(0.007)


def test_no_row_of_epmc_is_fitted_on() -> None:
    rows = _fitted_rows(load_paper(EXPERIMENTS / "epmc"))
    assert len(rows) == 4
    assert all(row.system == "serial baseline vs Pytorch baseline" and row.metric == "ETR" for row in rows)
