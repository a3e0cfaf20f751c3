"""Winograd's rate and the waves that fill a Kepler: a fit on published throughputs only."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.core import configuration
from membench.lab.calibrate.waves import StepTimes, Throughputs, fit_waves, mean_square, read_published, relative_errors

SIZES = (1, 4, 32)


def steps() -> list[StepTimes]:
    """Three kernels whose blocks grow with the batch."""
    return [StepTimes(n, n * np.array([0.1, 0.2, 0.3]), n * np.array([0.05, 0.4, 3.0]), 0.01) for n in SIZES]


@given(st.floats(0.0, 3.0), st.floats(0.0, 3.0))
def test_the_waves_behind_a_set_of_throughputs_meet_it_best(true: float, other: float) -> None:
    published = {step.images: step.images_per_s(true) for step in steps()}
    row = Throughputs("any", "training", published)
    errors = [[relative_errors(row, steps(), half_waves)] for half_waves in (true, other)]
    assert mean_square(errors[0]) == pytest.approx(0.0, abs=1e-20)
    assert mean_square(errors[1]) >= mean_square(errors[0])
    if abs(true - other) > 0.01:
        assert mean_square(errors[1]) > 1e-9


def test_a_step_and_its_errors_worked_by_hand() -> None:
    step = StepTimes(4, np.array([0.5, 1.0]), np.array([2.0, 4.0]), 0.25)
    assert step.images_per_s(0.0) == pytest.approx(4 / 1.75)
    assert step.images_per_s(2.0) == pytest.approx(4 / (0.25 + 0.5 * 2 + 1.0 * 1.5))
    # the largest batch's error, and by how much those of the other batches differ from it
    errors = [[float(np.expm1(log)) for log in logs] for logs in ([0.3, 0.6, 0.5], [0.1])]
    assert mean_square(errors) == pytest.approx((0.5**2 + 0.1**2) / 2 + (0.2**2 + 0.1**2) / 2)


def test_throughput_grows_with_the_batch() -> None:
    for row in read_published():
        assert list(row.images_per_s.values()) == sorted(row.images_per_s.values())
    assert [(row.model, max(row.images_per_s)) for row in read_published()] == [
        ("vgg16", 64), ("resnet50", 128), ("resnet152", 128), ("resnet50", 32)
    ]  # fmt: skip


@pytest.mark.exhaustive
def test_the_framework_has_the_fitted_constants() -> None:
    efficiency = configuration.load("framework", "modnn").efficiency
    found = dict(re.findall(r"^(\w+): (\S+)", fit_waves(), flags=re.MULTILINE))
    assert float(found["winograd"]) == efficiency.convolution["winograd"]
    assert float(found["half_waves"]) == efficiency.half_waves
