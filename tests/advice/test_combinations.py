"""Enumerated combinations: products that are the number of GPUs, batches that divide, and nothing twice."""

from itertools import product
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from membench.advice.combinations import Combination, combinations, factorisations, micro_batches
from membench.models.checkpointing import Checkpointing


@given(st.integers(1, 96), st.integers(1, 3))
def test_axes_have_all_sizes_whose_product_is_the_number_of_gpus_once(number: int, axes: int) -> None:
    names = ("pp", "dp", "fsdp")[:axes]
    found = list(factorisations(number, names))
    divisors = [size for size in range(1, number + 1) if number % size == 0]
    expected = [sizes for sizes in product(divisors, repeat=axes) if prod(sizes) == number]
    assert sorted(tuple(dict(each).values()) for each in found) == expected
    assert all(tuple(dict(each)) == names for each in found)


@given(st.integers(1, 512))
def test_micro_batches_of_a_batch_are_powers_of_two_that_divide_it_and_the_batch(batch_size: int) -> None:
    found = list(micro_batches(batch_size, most=4))
    assert all(size * number == batch_size for size, number in found)
    powers = {1 << bit for bit in range(10) if batch_size % (1 << bit) == 0}
    assert [size for size, _ in found] == sorted({*powers, batch_size})


def test_without_a_batch_each_size_is_a_step_of_its_own() -> None:
    assert list(micro_batches(None, most=4)) == [(1, 1), (2, 1), (4, 1)]


@given(st.integers(1, 64), st.integers(1, 4))
def test_combinations_differ_and_leave_out_what_does_not_apply(number: int, accumulate: int) -> None:
    meshes = list(factorisations(number, ("dp", "fsdp")))
    found = list(combinations(meshes, Checkpointing.FULL, 2, accumulate))
    assert len(set(found)) == len(found)
    assert all(each.global_batch == 2 * accumulate * number for each in found)
    replicated = [each for each in found if each.shards == 1]
    assert all(each.reshard_after_forward for each in replicated)
    assert len(replicated) == (accumulate == 1)
    assert len(found) - len(replicated) == 2 * sum(dict(axes)["fsdp"] > 1 for axes in meshes)


def test_an_axis_of_one_gpu_is_left_out_of_what_is_passed_on() -> None:
    assert Combination((("dp", 1), ("fsdp", 8)), True, Checkpointing.NONE, 1).parallel == {"fsdp": 8}
