"""Seconds of kernels by family, on devices with and without tensor cores."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import Kind, Phase, Task
from membench.core.hardware.efficiency import KernelRates
from membench.cost.kernels import Family, Kernel
from membench.cost.products import Product
from membench.cost.rates import kernel_time_s
from membench.cost.roofline import RooflineCost

EFFICIENCY = configuration.load("framework", "pytorch").efficiency
RATES: KernelRates = EFFICIENCY.kernels
RTX3090, V100, P100 = (configuration.load("device", name) for name in ("rtx3090", "v100", "p100"))
LARGE = Product(1, 8192, 8192, 8192)


def product(precision: Precision, family: Family = Family.PRODUCT, **options: bool) -> Kernel:
    return Kernel(family, precision, 10**6, 2 * 8192**3, LARGE, **options)


@given(st.sampled_from(list(Family)), st.integers(0, 10**12), st.integers(0, 10**14), st.booleans())
def test_no_kernel_moves_its_bytes_faster_than_the_memory(
    family: Family, moved_bytes: int, operations: int, channels_last: bool
) -> None:
    kernel = Kernel(family, Precision.FP16, moved_bytes, operations, channels_last=channels_last)
    assert kernel_time_s(kernel, RATES, RTX3090) >= moved_bytes / RTX3090.memory_bytes_per_s


def test_half_precision_pays_where_there_are_tensor_cores() -> None:
    for device, gain in ((RTX3090, 2.0), (V100, 5.0), (P100, 1.0)):
        single_s, half_s = (kernel_time_s(product(p), RATES, device) for p in (Precision.FP32, Precision.FP16))
        assert single_s / half_s >= gain
    bf16_s, single_s = (kernel_time_s(product(p), RATES, V100) for p in (Precision.BF16, Precision.FP32))
    assert bf16_s == pytest.approx(single_s, rel=0.03)  # the V100 multiplies bfloat16 as single precision


def test_large_products_reach_published_rates() -> None:
    """Published rates of PyTorch's products of 8192 in half precision; none of them was fitted."""
    published = {"l4": 54e12, "v100": 97e12, "a100_40gb": 241e12, "h100": 736e12}
    for name, ops_per_s in published.items():
        time_s = kernel_time_s(product(Precision.FP16), RATES, configuration.load("device", name))
        assert 2 * 8192**3 / time_s == pytest.approx(ops_per_s, rel=0.25)


def test_the_weight_gradient_of_a_depthwise_convolution_is_the_slowest_pass() -> None:
    kernel = Kernel(Family.DEPTHWISE, Precision.FP16, 0, 10**12)
    for channels_last in (False, True):
        of_layout = replace(kernel, channels_last=channels_last)
        weight = replace(of_layout, is_weight_gradient=True)
        assert kernel_time_s(weight, RATES, RTX3090) > 2 * kernel_time_s(of_layout, RATES, RTX3090)


def test_layouts_change_only_around_tensor_cores() -> None:
    def changing_s(precision: Precision, device_name: str) -> float:
        kernel = product(precision, Family.CONVOLUTION)
        device = configuration.load("device", device_name)
        with_change = kernel_time_s(replace(kernel, layout_bytes=10**9), RATES, device)
        return with_change - kernel_time_s(kernel, RATES, device)

    assert changing_s(Precision.FP16, "rtx3090") > 1e9 / RTX3090.memory_bytes_per_s
    assert changing_s(Precision.FP16, "p100") == changing_s(Precision.FP32, "rtx3090") == 0.0


def test_a_cost_model_with_kernels_prices_launches_and_the_host() -> None:
    cost = RooflineCost(RTX3090, EFFICIENCY)
    task = Task(1, "task", Kind.RELU, Phase.FORWARD, 0, (), (), (), moved_bytes=10**9)
    several = replace(task, launches=3)
    assert cost.task_time_s(task) == kernel_time_s(Kernel(Family.ELEMENTWISE, Precision.FP32, 10**9), RATES, RTX3090)
    assert cost.launch_time_s(task) == RATES.kernel_s
    assert cost.launch_time_s(several) == 3 * RATES.kernel_s
    assert cost.task_issue_time_s(task) == RATES.issue_s
    assert cost.task_issue_time_s(several) == 3 * RATES.issue_s
    on_the_host = replace(task, host_bytes=RTX3090.host_to_device_bytes_per_s)
    assert cost.task_time_s(on_the_host) - cost.task_time_s(task) >= 1
    plain = RooflineCost(RTX3090, configuration.load("framework", "pytorch_plain").efficiency)
    assert plain.task_issue_time_s(task) == 0.0


def test_a_rate_that_is_not_positive_is_refused() -> None:
    with pytest.raises(MembenchError, match="copy is a positive number"):
        replace(RATES, copy=0.0)
    with pytest.raises(MembenchError, match="kernel_s is a number and not negative"):
        replace(RATES, kernel_s=-1e-6)


@pytest.mark.parametrize(("device", "fast"), [("h200", True), ("p100", False)])
def test_a_kernel_moves_what_its_loads_and_the_memory_do(device: str, *, fast: bool) -> None:
    """Threads that wait for each load are slower than the memory of an H200, and no slower than that of a P100."""
    profile = configuration.load("device", device)
    rates = replace(RATES, load_clocks=1000.0, normalization=0.5)
    kernel = Kernel(Family.NORMALIZATION, Precision.BF16, 10**9)
    waiting, memory_s = replace(kernel, load_bytes=4.0), kernel_time_s(kernel, rates, profile)
    of_memory_s = 10**9 / (0.5 * profile.memory_bytes_per_s)
    of_loads_s = 10**9 * 1000 / (profile.multiprocessors * 2048 * 4 * profile.clock_hz)
    assert memory_s == pytest.approx(of_memory_s)
    assert kernel_time_s(waiting, rates, profile) == pytest.approx(max(of_loads_s, of_memory_s))
    assert (of_loads_s > of_memory_s) is fast
    of_ten_blocks_s = of_loads_s * profile.multiprocessors / 10
    assert kernel_time_s(replace(waiting, blocks=10), rates, profile) == pytest.approx(max(of_ten_blocks_s, memory_s))


def test_single_precision_reaches_less_where_a_multiprocessor_issues_only_what_its_lanes_take() -> None:
    """Published for products of 8192: an A100 0.90 of its peak, an H100 0.77."""
    reached = {}
    for name in ("a100_40gb", "h100"):
        device = configuration.load("device", name)
        time_s = kernel_time_s(product(Precision.FP32), RATES, device)
        reached[name] = 2 * 8192**3 / time_s / device.arithmetic_ops_per_s
    assert reached == pytest.approx({"a100_40gb": 0.90, "h100": 0.77}, rel=0.1)
    assert reached["h100"] < 0.85 * reached["a100_40gb"]


def test_products_with_odd_rows_are_as_slow_as_their_loads() -> None:
    """Loads of one element, of two and of four; an RTX 3090's tensor cores are no faster than loads of one."""
    h200 = configuration.load("device", "h200")
    times_s = [
        kernel_time_s(replace(product(Precision.BF16), aligned_bytes=size), RATES, h200) for size in (2, 4, 8, 16)
    ]
    assert times_s[0] == pytest.approx(2 * times_s[1]) == pytest.approx(4 * times_s[2])
    assert times_s[2] > times_s[3]
    odd_s, even_s = (
        kernel_time_s(replace(product(Precision.FP16), aligned_bytes=size), RATES, RTX3090) for size in (2, 16)
    )
    assert odd_s == even_s
    single = replace(product(Precision.FP32), aligned_bytes=4)
    assert kernel_time_s(single, RATES, h200) == kernel_time_s(product(Precision.FP32), RATES, h200)
