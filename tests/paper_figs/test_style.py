"""Figures are saved as the same bytes, and a line says what each draws."""

from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure

from paper_figs.style import plain_ticks, save, summary, use_style


@pytest.fixture(autouse=True)
def _style() -> Iterator[None]:
    with mpl.rc_context():
        use_style()
        yield


def _scatter(factor: float) -> Figure:
    figure, axes = plt.subplots(layout="constrained")
    numbers = np.geomspace(1, 500, 40)
    axes.scatter(numbers * factor, numbers[::-1] / factor, s=14, alpha=0.75)
    axes.set(xscale="log", yscale="log", xlabel="measured, ms", ylabel="simulated,\nms")
    axes.set_title("a data set")
    return figure


@pytest.mark.parametrize("factor", [1 + 2e-16, 1 + 1e-14, 1 - 1e-13])
def test_the_last_digit_of_a_place_changes_no_byte(factor: float, tmp_path: Path) -> None:
    save(_scatter(1), tmp_path / "first")
    save(_scatter(factor), tmp_path / "second")
    for suffix in (".pdf", ".png"):
        first, second = ((tmp_path / name).with_suffix(suffix).read_bytes() for name in ("first", "second"))
        assert first == second


def test_another_place_changes_bytes(tmp_path: Path) -> None:
    save(_scatter(1), tmp_path / "first")
    save(_scatter(1.01), tmp_path / "second")
    assert (tmp_path / "first.pdf").read_bytes() != (tmp_path / "second.pdf").read_bytes()


def test_a_summary_names_the_title_and_the_axes() -> None:
    assert summary(_scatter(1)) == "a data set; simulated, ms; over measured, ms"


@pytest.mark.parametrize("low", [0.4, 1.5, 35, 900, 2500])
@pytest.mark.parametrize("ratio", [4, 12, 150, 3000])
def test_a_logarithmic_axis_has_a_few_plain_numbers(low: float, ratio: float) -> None:
    figure, axes = plt.subplots()
    axes.set(xscale="log", xlim=(low, ratio * low))
    plain_ticks(axes.xaxis, low, ratio * low)
    labels = [label.get_text() for label in axes.get_xticklabels(which="both")]
    plt.close(figure)
    assert 3 <= len(labels) <= 12
    numbers = [float(label.replace(",", "")) for label in labels]
    assert numbers == sorted(numbers) and low <= numbers[0] and numbers[-1] <= ratio * low
