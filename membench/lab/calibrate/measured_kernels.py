"""Single kernels that others measured on several cards, and how far off their predicted times are.

A table of `TABLES` has one operator's sizes and times. The program that measured them also waited for its host: the
least time of an operator on a card is nearly all of that wait, and what exceeds it grows linearly with the bytes from
about half of it on (elementwise operators, within 1 %).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional

from membench.capture.capture import capture
from membench.capture.trace import ANY_GPU
from membench.core import configuration
from membench.core.configuration import ROOT
from membench.core.graph.precision import Precision
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.efficiency import KernelRates
from membench.core.step.workload import Workload
from membench.cost.kernels import Kernel, kernels_of
from membench.cost.rates import kernel_time_s

TABLES = ROOT / "experiments" / "validation" / "kernels"
_AROUND = 0.55
"""Of an operator's least time on a card, what each of its times has in addition to the kernel's own."""
_SHORTEST = 1.5
"""Of that least time: shorter times are of the host."""

_Sizes = tuple[int, ...]


def _linear(empty: Callable[..., Tensor], batch: int, rows: int, columns: int, depth: int) -> Tensor:
    return functional.linear(empty(batch, rows, depth), empty(columns, depth), empty(columns))


def _convolution(
    empty: Callable[..., Tensor], images: int, inputs: int, outputs: int, kernel: int, side: int, stride: int, pad: int
) -> Tensor:
    filters = empty(outputs, inputs, kernel, kernel)
    return functional.conv2d(empty(images, inputs, side, side), filters, stride=stride, padding=pad)


def _of_rows(function: Callable[[Tensor], Tensor], empty: Callable[..., Tensor], *sizes: int) -> Tensor:
    return function(empty(*sizes))


def _of_pairs(function: Callable[[Tensor, Tensor], Tensor], empty: Callable[..., Tensor], *sizes: int) -> Tensor:
    return function(empty(*sizes), empty(*sizes))


CALLS: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "add": ("add", partial(_of_pairs, torch.add)),
    "add_number": ("add", partial(_of_rows, lambda rows: rows + 1.0)),
    "bmm": ("bmm", lambda empty, count, rows, columns, depth: empty(count, rows, depth) @ empty(count, depth, columns)),
    "conv": ("convolution", _convolution),
    "div": ("div", partial(_of_pairs, torch.div)),
    "gelu": ("gelu", partial(_of_rows, functional.gelu)),
    "layer_norm": ("native_layer_norm", partial(_of_rows, lambda rows: functional.layer_norm(rows, rows.shape[1:]))),
    "linear": ("addmm", _linear),
    "mul": ("mul", partial(_of_pairs, torch.mul)),
    "pow": ("pow", partial(_of_rows, lambda rows: rows**2)),
    "relu": ("relu", partial(_of_rows, functional.relu)),
    "softmax": ("_softmax", partial(_of_rows, partial(functional.softmax, dim=-1))),
    "tanh": ("tanh", partial(_of_rows, torch.tanh)),
}
"""By the name of a table: the operator in ATen, and its call on a factory of tensors and a row's sizes."""


@dataclass(frozen=True)
class MeasuredKernel:
    """The kernels of one call, and their measured seconds without what the program waited for its host."""

    table: str
    device: str
    kernels: tuple[Kernel, ...]
    measured_s: float

    def error(self, rates: KernelRates, device: DeviceProfile) -> float:
        """Return the relative error of the predicted time."""
        return sum(kernel_time_s(kernel, rates, device) for kernel in self.kernels) / self.measured_s - 1


class _Calls(nn.Module):
    """All calls of one table, one after another."""

    def __init__(self, table: str, sizes: Sequence[_Sizes]) -> None:
        super().__init__()
        self._call, self._sizes = CALLS[table][1], sizes

    def forward(self, start: Tensor) -> list[Tensor]:
        return [self._call(start.new_empty, *sizes) for sizes in self._sizes]


def measured_kernels(folder: Path = TABLES) -> list[MeasuredKernel]:
    """Return the rows of all tables that are long enough to be of the kernels."""
    return [kernel for table in CALLS for kernel in _kernels_in(table, folder / f"{table}.csv")]


def _kernels_in(table: str, path: Path) -> list[MeasuredKernel]:
    rows = pd.read_csv(path, comment="#")
    sizes = [tuple(map(int, each)) for each in rows[[*rows.columns[1:-1]]].itertuples(index=False)]
    kernels = _kernels_by_sizes(table, list(dict.fromkeys(sizes)))
    least_ms = rows.groupby("device")["latency_ms"].transform("min")
    around_s = 1e-3 * _AROUND * least_ms
    found = zip(rows["device"], sizes, 1e-3 * rows["latency_ms"] - around_s, strict=True)
    is_long = rows["latency_ms"] >= _SHORTEST * least_ms
    return [
        MeasuredKernel(table, device, kernels[size], time_s)
        for (device, size, time_s), counts in zip(found, is_long, strict=True)
        if counts
    ]


def _kernels_by_sizes(table: str, sizes: Sequence[_Sizes]) -> dict[_Sizes, tuple[Kernel, ...]]:
    operator = CALLS[table][0]
    batch = (torch.empty(1, device="meta"),)
    workload = Workload(table, _Calls(table, sizes), None, batch, precision=Precision.FP32)
    tasks = [
        task
        for task in capture(workload, ANY_GPU).graph.tasks
        if task.call is not None and task.call.operator.split(".")[1] == operator
    ]
    return {each: kernels_of(task) for each, task in zip(sizes, tasks, strict=True)}


def error_lines(kernels: Sequence[MeasuredKernel], rates: KernelRates) -> list[str]:
    """Return a line for each table and card: rows, and the median, 90th percentile and bias of the errors."""
    profiles = {name: configuration.load("device", name) for name in {kernel.device for kernel in kernels}}
    errors = pd.DataFrame(
        {
            "table": [kernel.table for kernel in kernels],
            "device": [kernel.device for kernel in kernels],
            "error": [kernel.error(rates, profiles[kernel.device]) for kernel in kernels],
        }
    )
    lines = [f"{'kernels':<12} {'card':<12} {'rows':>5} {'median':>8} {'p90':>8} {'bias':>8}"]
    for (table, device), of_card in errors.groupby(["table", "device"])["error"]:
        numbers = "".join(f" {value:8.1%}" for value in (*of_card.abs().quantile([0.5, 0.9]), of_card.median()))
        lines.append(f"{table:<12} {device:<12} {len(of_card):>5}{numbers}")
    return lines
