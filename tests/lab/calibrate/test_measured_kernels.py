"""Single kernels that others measured: their tables, the calls of their rows, and the errors of predictions."""

from dataclasses import replace
from pathlib import Path

import pytest

from membench.core import configuration
from membench.core.hardware.efficiency import KernelRates
from membench.cost.kernels import Family
from membench.cost.products import Product
from membench.lab.calibrate.measured_kernels import CALLS, TABLES, error_lines, measured_kernels

RATES: KernelRates = configuration.load("framework", "pytorch").efficiency.kernels
HEADER = "# of a test\ndevice,rows,columns,latency_ms\n"
SQUARE = "# of a test\ndevice,size,latency_ms\nv100,1024,0.2\n"
ROWS = {
    **dict.fromkeys(("square_float16", "square_float32"), SQUARE),
    "bmm": "# of a test\ndevice,batch,rows,columns,depth,latency_ms\nv100,2,3,4,5,0.03\nv100,20,30,40,50,0.06\n",
    "conv": "# of a test\ndevice,batch,in_channels,out_channels,kernel_size,size,stride,padding,latency_ms\n"
    "v100,1,3,3,3,5,1,1,0.1\nv100,8,16,32,3,10,1,1,0.2\n",
    "linear": "# of a test\ndevice,batch,rows,columns,depth,latency_ms\nv100,1,3,4,5,0.03\nv100,1,30,40,50,0.06\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for table in CALLS:
        text = ROWS.get(table, f"{HEADER}v100,8,16,0.02\nv100,8,16,0.029\nv100,4096,1024,0.1\n")
        (tmp_path / f"{table}.csv").write_text(text)
    return tmp_path


def test_each_table_has_a_call() -> None:
    assert sorted(CALLS) == sorted(path.stem for path in TABLES.glob("*.csv"))


def test_a_row_is_the_kernel_of_its_call_without_the_wait_for_the_host(folder: Path) -> None:
    found = {kernel.table: kernel for kernel in measured_kernels(folder)}
    [product], [convolution], [sums] = (found[name].kernels for name in ("bmm", "conv", "add"))
    assert product.product == Product(20, 30, 40, 50)
    assert (convolution.family, convolution.operations) == (Family.CONVOLUTION, 2 * 8 * 16 * 32 * 9 * 100)
    assert sums.moved_bytes == 3 * 4096 * 1024 * 4
    assert found["add"].measured_s == pytest.approx((0.1 - 0.55 * 0.02) * 1e-3)


def test_times_near_the_least_one_are_left_out(folder: Path) -> None:
    found = measured_kernels(folder)
    assert len(found) == len(CALLS)
    assert {kernel.measured_s for kernel in found if kernel.table in ROWS and "square" in kernel.table} == {0.2e-3}


def test_errors_are_printed_by_table_and_card(folder: Path) -> None:
    kernels = [replace(kernel, measured_s=1e-6) for kernel in measured_kernels(folder) if kernel.table == "add"]
    [kernel], device = kernels, configuration.load("device", "v100")
    error = kernel.time_s(RATES, device) / 1e-6 - 1
    assert error_lines(kernels, RATES)[1].split() == ["add", "v100", "1", *[f"{error:.1%}"] * 3]
