"""Single kernels that others measured on several cards, and how far off their predicted times are.

A file of `TABLES` has one operator's sizes and times. NeuSight's include what its program waits for its host: the
least time of an operator on a card is nearly all of that wait, and the times of elementwise operators grow linearly
with their bytes from about half of it on (within 1 %).
"""

from collections.abc import Callable, Iterable, Sequence
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
"""Of an operator's least time on a card, what each of NeuSight's has in addition to the kernel's own."""
_SHORTEST = 1.5
"""Of that least time: shorter times are of the host."""
_WITHOUT_HOST = {"square_float16", "square_float32"}
"""Tables whose programs wait for many calls together."""

_Sizes = tuple[int, ...]


def _linear(empty: Callable[..., Tensor], batch: int, rows: int, columns: int, depth: int) -> Tensor:
    return functional.linear(empty(batch, rows, depth), empty(columns, depth), empty(columns))


def _convolution(
    empty: Callable[..., Tensor], images: int, inputs: int, outputs: int, kernel: int, side: int, stride: int, pad: int
) -> Tensor:
    filters = empty(outputs, inputs, kernel, kernel)
    return functional.conv2d(empty(images, inputs, side, side), filters, stride=stride, padding=pad)


def _square(empty: Callable[..., Tensor], size: int, dtype: torch.dtype) -> Tensor:
    return empty(size, size, dtype=dtype) @ empty(size, size, dtype=dtype)


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
    "pow": ("pow", partial(_of_pairs, torch.pow)),
    "relu": ("relu", partial(_of_rows, functional.relu)),
    "square_float16": ("mm", partial(_square, dtype=torch.float16)),
    "square_float32": ("mm", partial(_square, dtype=torch.float32)),
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

    def time_s(self, rates: KernelRates, device: DeviceProfile) -> float:
        """Return the predicted time."""
        return sum(kernel_time_s(kernel, rates, device) for kernel in self.kernels)


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
    least_ms = (table not in _WITHOUT_HOST) * rows.groupby("device")["latency_ms"].transform("min")
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


def profiles_of(kernels: Iterable[MeasuredKernel]) -> dict[str, DeviceProfile]:
    """Return the profiles of the kernels' cards, by name."""
    return {name: configuration.load("device", name) for name in sorted({kernel.device for kernel in kernels})}


def error_lines(kernels: Sequence[MeasuredKernel], rates: KernelRates) -> list[str]:
    """Return a line for each table and card: rows, and the median, 90th percentile and bias of the errors."""
    profiles = profiles_of(kernels)
    errors = pd.DataFrame(
        [
            (each.table, each.device, each.time_s(rates, profiles[each.device]) / each.measured_s - 1)
            for each in kernels
        ],
        columns=["table", "device", "error"],
    )
    lines = [f"{'kernels':<14} {'card':<10} {'rows':>5} {'median':>8} {'p90':>8} {'bias':>8}"]
    for (table, device), of_card in errors.groupby(["table", "device"])["error"]:
        numbers = "".join(f" {value:8.1%}" for value in (*of_card.abs().quantile([0.5, 0.9]), of_card.median()))
        lines.append(f"{table:<14} {device:<10} {len(of_card):>5}{numbers}")
    return lines
