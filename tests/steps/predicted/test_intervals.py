"""Intervals of predictions contain the likely values, and the chance to fit falls with the memory that is needed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.core.units import GIB
from membench.steps.predicted.intervals import (
    MEMORY,
    PROBABILITIES,
    TIME,
    Ratios,
    StepKind,
    chance_in_words,
    has_published_times,
    ratios_of,
)
from membench.steps.predicted.prediction import Prediction

KINDS = st.builds(StepKind, st.booleans(), st.booleans(), st.booleans(), st.booleans())
ONE_GPU = StepKind(trains=True, several=False, copies=False, measured=True)
FITS = Prediction("t4", 8, 10 * GIB, 11 * GIB, 12 * GIB, 0.5, True, 16 * GIB, {}, ONE_GPU)


@given(KINDS, st.sampled_from([TIME, MEMORY]), st.floats(1e-6, 1e12))
def test_an_interval_has_nine_tenths_of_the_probability(kind: StepKind, quantity: str, predicted: float) -> None:
    ratios = ratios_of(quantity, kind)
    low, high = ratios.interval(predicted)
    inside = ratios.probability_within(high / predicted) - ratios.probability_within(low / predicted)
    assert low < high and inside == pytest.approx(0.9)


@given(st.lists(st.floats(0.2, 5), min_size=2, max_size=2))
def test_the_probability_grows_with_the_room(rooms: list[float]) -> None:
    found = [ratios_of(MEMORY, ONE_GPU).probability_within(room) for room in sorted(rooms)]
    assert 0 <= found[0] <= found[1] <= 1


def test_beyond_the_quantiles_it_is_certain() -> None:
    ratios = Ratios(tuple(1 + probability for probability in PROBABILITIES))
    assert [ratios.probability_within(room) for room in (1.0, 1.5, 2.0)] == [0, pytest.approx(0.5), 1]


def test_a_card_without_published_times_is_known_as_one() -> None:
    assert has_published_times("rtx3090") and not has_published_times("mi300x")
    assert "without published step times" in str(replace(ONE_GPU, measured=False))


def test_a_prediction_has_intervals_and_a_chance_to_fit() -> None:
    assert FITS.step_time_interval_s == ratios_of(TIME, ONE_GPU).interval(0.5)
    assert FITS.shown_interval_bytes == ratios_of(MEMORY, ONE_GPU).interval(12 * GIB)
    assert replace(FITS, used_bytes=None).shown_interval_bytes == ratios_of(MEMORY, ONE_GPU).interval(11 * GIB)
    assert FITS.fit_probability == 1
    tight = replace(FITS, used_bytes=16 * GIB).fit_probability
    assert tight and 0 < tight < 1
    assert replace(FITS, used_bytes=20 * GIB).fit_probability == tight  # it fits after all: by what is returned
    refused = replace(FITS, used_bytes=20 * GIB, fits=False)
    assert refused.fit_probability == 0
    assert replace(FITS, fits=False).fit_probability is None  # the host has too little memory


@pytest.mark.parametrize(
    ("probability", "text"), [(0.5, ", with a probability of 50% to fit"), (0.99, ""), (0.01, ""), (None, "")]
)
def test_a_chance_is_stated_where_it_is_open(probability: float | None, text: str) -> None:
    assert chance_in_words(probability) == text
