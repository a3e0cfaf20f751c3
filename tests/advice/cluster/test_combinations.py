"""Enumerated combinations: products that are the number of GPUs, batches that divide, and nothing twice."""

from itertools import product
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from membench.advice.cluster.combinations import (
    ROUNDS,
    Combination,
    combinations,
    factorisations,
    micro_batches,
    with_longer_ring,
)
from membench.models.checkpointing import Checkpointing
from membench.steps.parallel.ranks import AXES


@given(st.integers(1, 96), st.integers(1, 3))
def test_axes_have_all_sizes_whose_product_is_the_number_of_gpus_once(number: int, axes: int) -> None:
    names = ("pp", "dp", "fsdp")[:axes]
    found = list(factorisations(number, names))
    divisors = [size for size in range(1, number + 1) if number % size == 0]
    expected = [sizes for sizes in product(divisors, repeat=axes) if prod(sizes) == number]
    assert sorted(tuple(dict(each).values()) for each in found) == expected
    assert all(tuple(dict(each)) == names for each in found)


@given(st.integers(1, 512))
def test_micro_batches_of_a_batch_are_powers_of_two_and_the_batch(batch_size: int) -> None:
    powers = {1 << bit for bit in range(10) if 1 << bit <= batch_size}
    assert list(micro_batches(batch_size, most=4)) == sorted({*powers, batch_size})


def test_without_a_batch_the_largest_micro_batch_is_given() -> None:
    assert list(micro_batches(None, most=4)) == [1, 2, 4]


@given(st.integers(1, 64), st.integers(1, 12), st.integers(1, 12))
def test_combinations_differ_and_leave_out_what_does_not_apply(number: int, micro_batch: int, batch_size: int) -> None:
    meshes = list(factorisations(number, tuple(AXES)))
    found = list(combinations(meshes, Checkpointing.FULL, micro_batch, batch_size))
    assert len(set(found)) == len(found)
    for each in found:
        assert each.global_batch == batch_size * number and each.samples == batch_size
        if each.shards == 1:
            assert each.reshard_after_forward and (each.accumulate == 1 or each.stages > 1)
        elif each.stages > 1:
            assert not each.reshard_after_forward
    shared = ("pp", "cp", "tp")
    divided = [axes for axes in meshes if batch_size * prod(dict(axes)[axis] for axis in shared) % micro_batch == 0]
    assert {each.axes for each in found if each.shards > 1} == {
        axes for axes in divided if any(dict(axes)[axis] > 1 for axis in ("fsdp", "cp", "ep"))
    }


@given(st.integers(1, 64))
def test_a_longer_ring_takes_gpus_from_the_shards_alone(number: int) -> None:
    for axes in factorisations(number, tuple(AXES)):
        longer = with_longer_ring(axes)
        assert (longer is None) is (dict(axes)["fsdp"] % 2 == 1)
        if longer is not None:
            before, after = (Combination(each, True, Checkpointing.FULL, 1, accumulate=2) for each in (axes, longer))
            assert tuple(dict(longer)) == tuple(AXES)
            assert after.shards == before.shards and after.samples == before.samples / 2
            assert after.division.context == 2 * before.division.context


def test_without_a_batch_some_rounds_of_micro_batches_pass_a_pipeline() -> None:
    axes = (("pp", 2), ("dp", 1), ("fsdp", 2), ("tp", 2))
    [found] = combinations([axes], Checkpointing.NONE, 1, None)
    assert found.accumulate == 2 * ROUNDS and found.global_batch == 4 * ROUNDS
    assert found.samples == ROUNDS / 2


def test_an_axis_of_one_gpu_is_left_out_of_what_is_passed_on() -> None:
    assert Combination((("dp", 1), ("fsdp", 8)), True, Checkpointing.NONE, 1).parallel == {"fsdp": 8}
