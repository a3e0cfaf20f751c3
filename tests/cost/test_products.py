"""Times of products by tiles and waves: bounds that hold for any shape, and published ones."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.cost.products import Multiplier, Product, product_time_s

UNIT = Multiplier(14e12, 900e9, 80, itemsize=4, edge_bytes_per_s=1.356e11, tile_depth=57)
sizes = st.integers(1, 5000)
products = st.builds(Product, st.integers(1, 64), sizes, sizes, sizes)


def operations(product: Product) -> int:
    return 2 * product.count * product.rows * product.columns * product.depth


@given(products)
def test_no_product_is_faster_than_the_peak_rate(product: Product) -> None:
    assert product_time_s(product, UNIT) * UNIT.ops_per_s >= operations(product) * (1 - 1e-9)


@given(products, st.sampled_from(["count", "rows", "columns", "depth"]), st.integers(1, 5000))
def test_a_larger_product_takes_no_less_time(product: Product, side: str, more: int) -> None:
    larger = replace(product, **{side: getattr(product, side) + more})
    assert product_time_s(larger, UNIT) >= product_time_s(product, UNIT) * (1 - 1e-9)


@given(products)
def test_a_transposed_result_takes_the_same_time(product: Product) -> None:
    turned = replace(product, rows=product.columns, columns=product.rows)
    assert product_time_s(turned, UNIT) == pytest.approx(product_time_s(product, UNIT))


def test_one_block_more_than_the_multiprocessors_takes_a_further_wave() -> None:
    """Of results of one tile each, where dividing the depth would add sums that take forever."""
    unit = replace(UNIT, bytes_per_s=1.0)
    times_s = [product_time_s(Product(count, 32, 32, 4096), unit) for count in (1, 80, 81, 160, 161)]
    assert times_s[0] == times_s[1] < times_s[2] == times_s[3] < times_s[4]
    assert times_s[2] == pytest.approx(2 * times_s[1])


def test_a_deep_product_of_few_results_is_divided() -> None:
    """A weight gradient: 64 x 576 results, each of a million products."""
    product = Product(1, 64, 576, 1_000_000)
    best_s = operations(product) / UNIT.ops_per_s
    undivided_s = product_time_s(product, replace(UNIT, bytes_per_s=1.0))  # sums of parts take forever
    assert best_s < product_time_s(product, UNIT) < 1.5 * best_s < undivided_s


def test_without_the_number_of_multiprocessors_any_tile_is_as_good() -> None:
    unit = replace(UNIT, multiprocessors=None, tile_depth=0)
    product = Product(1, 128, 128, 1024)
    assert product_time_s(product, unit) == pytest.approx(operations(product) / unit.ops_per_s)


@pytest.mark.parametrize(("rows", "columns", "depth"), [(8192, 8192, 8192), (10240, 10240, 10240)])
def test_a_large_product_reaches_most_of_the_peak(rows: int, columns: int, depth: int) -> None:
    """14.4 TFLOPS in single precision are published for a V100 SXM2, of 15.7 at its boost clock."""
    product = Product(1, rows, columns, depth)
    unit = replace(UNIT, ops_per_s=15.7e12)
    assert 0.92 < operations(product) / product_time_s(product, unit) / 15.7e12 < 1.0
