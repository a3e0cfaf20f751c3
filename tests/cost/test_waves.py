"""Waves of thread blocks: counts by hand, and what must hold of the efficiency at any of them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.core.graph.convolution import Convolution
from membench.core.graph.task_graph import GradientOf, Kind, Phase, Task
from membench.cost.waves import TILE_OUTPUTS, task_waves, tile_fill, wave_efficiency

CONVOLUTION = Convolution(8, 64, 128, (56, 56), (28, 28), (3, 3), (2, 2), (1, 1), (1, 1), groups=1, itemsize=4)
positive = st.floats(1e-6, 1e6)


def task(moved_bytes: int = 0, gradient_of: GradientOf | None = None, convolution: Convolution | None = None) -> Task:
    return Task(
        0, "task", Kind.CONVOLUTION, Phase.FORWARD, 0, (), (), (),
        moved_bytes=moved_bytes, gradient_of=gradient_of, convolution=convolution,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("gradient_of", "outputs"),
    [(None, 8 * 128 * 28 * 28), (GradientOf.WEIGHT, 8 * 128 * 28 * 28), (GradientOf.DATA, 8 * 64 * 56 * 56)],
)
def test_waves_of_a_convolution_and_its_gradients(gradient_of: GradientOf | None, outputs: int) -> None:
    found = task_waves(task(gradient_of=gradient_of, convolution=CONVOLUTION), 15)
    assert found == pytest.approx(outputs / (128 * 64) / 15)


@pytest.mark.parametrize(
    ("gradient_of", "groups", "fill"),
    [(None, 1, 96 / 128), (GradientOf.WEIGHT, 1, 96 / 128), (GradientOf.DATA, 1, 20 / 64), (None, 2, 48 / 64)],
)
def test_tiles_are_whole_in_the_channels_of_each_group(
    gradient_of: GradientOf | None, groups: int, fill: float
) -> None:
    own = replace(CONVOLUTION, input_channels=20, output_channels=96, groups=groups)
    padded = task(gradient_of=gradient_of, convolution=own)
    assert tile_fill(padded, 64) == fill
    assert tile_fill(padded, 1) == 1
    assert tile_fill(task(moved_bytes=1), 64) == 1
    assert task_waves(padded, 15, 64) == pytest.approx(task_waves(padded, 15) / fill)


def test_an_inner_product_of_one_sample_has_the_blocks_of_its_weights() -> None:
    """VGG's first: 25,088 x 4,096 weights of four bytes; its 4,096 outputs alone would be half a block."""
    assert task_waves(task(moved_bytes=4 * 25_088 * 4_096), 15) > 400


@given(st.integers(1, 512), st.integers(1, 512), st.integers(1, 200))
def test_waves_grow_with_images_and_fall_with_multiprocessors(few: int, more: int, multiprocessors: int) -> None:
    small, large = (task(convolution=replace(CONVOLUTION, images=images)) for images in (few, few + more))
    assert task_waves(small, multiprocessors) < task_waves(large, multiprocessors)
    assert task_waves(small, multiprocessors) > task_waves(small, multiprocessors + 1)


@given(positive, positive, positive)
def test_more_waves_reach_more_of_the_rate_and_never_more_than_all(
    waves: float, more: float, half_waves: float
) -> None:
    few, many = wave_efficiency(waves, half_waves), wave_efficiency(waves + more, half_waves)
    assert 0 < few <= many <= 1
    assert wave_efficiency(half_waves, half_waves) == 0.5
    assert wave_efficiency(waves, 0.0) == 1.0


def test_a_task_that_moves_nothing_is_not_slowed_down() -> None:
    assert wave_efficiency(task_waves(task(), 15), 1.0) == 1.0


def test_one_tile_on_one_multiprocessor_is_one_wave() -> None:
    assert task_waves(task(moved_bytes=8 * TILE_OUTPUTS), 1) == 1.0
