"""The curve of `membench app` has the plans that no other one beats."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("bokeh", reason="pip install 'membench[app]': no bokeh")
from membench.cli.app_pictures import unbeaten

PLANS = st.lists(st.builds(SimpleNamespace, peak_bytes=st.integers(0, 9), step_time_s=st.integers(0, 9)), max_size=6)


@given(PLANS)
def test_each_plan_has_one_on_the_curve_that_is_as_good(plans: list[Any]) -> None:
    best = unbeaten(plans)
    for plan in plans:
        assert any(one.peak_bytes <= plan.peak_bytes and one.step_time_s <= plan.step_time_s for one in best)
    peaks, times = [one.peak_bytes for one in best], [one.step_time_s for one in best]
    assert peaks == sorted(set(peaks)) and times == sorted(set(times), reverse=True)
