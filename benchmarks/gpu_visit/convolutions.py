"""Workspaces of convolutions on the GPU at hand: where cuDNN copies images into the layout of its kernels.

One convolution at a time, called by its operators: forward, and each gradient. What a call's peak has in addition to
its results is its workspace, `workspace_bytes`. Next to it stands `copies_bytes`: all tensors of the call whose
channels do not lie next to each other, which is what `membench.cost.layouts` takes for the workspace in three
dimensions and half precision.

A row is a convolution, with its passes. One that the device refuses has `error` in place of bytes.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor

from benchmarks.gpu_visit.rows import Rows, Values, Visit
from membench.core.errors import one_line
from membench.execution.measurement import peak_bytes

FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "fp32": torch.float32}
CHANNELS = ((64, 64, 1), (3, 64, 1), (64, 64, 4))
"""Of the input, of the result, and groups."""
SIZES = {2: (16, 256, 256), 3: (1, 8, 192, 192)}
"""Images, and pixels of each axis, by the number of axes."""
SMALL = {2: (2, 6, 6), 3: (1, 3, 6, 6)}
CALLS = 2
"""Of each measurement the last call counts; the first one asks cuDNN's heuristics."""


@dataclass(frozen=True)
class Case:
    """One convolution with filters of 3 or 1 pixels on each axis, and padding that keeps the size."""

    axes: int
    precision: str
    channels_last: bool
    inputs: int
    outputs: int
    groups: int
    kernel: int


def cases() -> Iterator[Case]:
    """Yield the convolutions that tell most.

    Of fp16 and of single pixels, only those with as many channels on both sides.
    """
    for channels, axes, precision, last, kernel in product(CHANNELS, SIZES, FORMATS, (False, True), (3, 1)):
        is_even = channels == CHANNELS[0]
        if is_even or (precision != "fp16" and kernel == 3):
            yield Case(axes, precision, last, *channels, kernel)


def run(visit: Visit, rows: Rows) -> None:
    """Measure the cases."""
    sizes = SMALL if visit.is_small else SIZES
    for case in cases():
        name = "convolution: " + " ".join(f"{key}={value}" for key, value in asdict(case).items())
        rows.measure(name, partial(_passes, case, sizes, visit.device))


def _passes(case: Case, sizes: dict[int, tuple[int, ...]], device: torch.device) -> Values:
    allowed = torch.backends.cudnn.allow_tf32
    try:
        return {"passes": list(measured(case, sizes, device))}
    finally:
        torch.backends.cudnn.allow_tf32 = allowed


def tensors(case: Case, sizes: dict[int, tuple[int, ...]], device: torch.device) -> list[Tensor]:
    """Return the input, the filters, and a gradient of the result."""
    images, *pixels = sizes[case.axes]
    shapes = [
        (images, case.inputs, *pixels),
        (case.outputs, case.inputs // case.groups, *[case.kernel] * case.axes),
        (images, case.outputs, *pixels),
    ]
    plain, last = torch.contiguous_format, {2: torch.channels_last, 3: torch.channels_last_3d}[case.axes]
    layout = last if case.channels_last else plain
    return [
        torch.randn(shape, device=device).to(FORMATS[case.precision]).contiguous(memory_format=layout)
        for shape in shapes
    ]


def passes(case: Case, given: list[Tensor]) -> dict[str, tuple[Callable[[], object], list[Tensor]]]:
    """Return by name what runs, and the tensors of it: the results have the layouts of what they are gradients of."""
    images, weight, upstream = given
    geometry = ([1] * case.axes, [case.kernel // 2] * case.axes, [1] * case.axes, False, [0] * case.axes, case.groups)

    def backward(*wanted: bool) -> Callable[[], object]:
        return lambda: torch.ops.aten.convolution_backward(upstream, images, weight, None, *geometry, [*wanted, False])

    return {
        "forward": (lambda: torch.ops.aten.convolution(images, weight, None, *geometry), [images, weight, upstream]),
        "weight": (backward(False, True), [upstream, images, weight]),
        "data": (backward(True, False), [upstream, weight, images]),
    }  # fmt: skip


def results_bytes(name: str, given: list[Tensor]) -> int:
    result = given[{"forward": 2, "weight": 1, "data": 0}[name]]
    return result.numel() * result.itemsize


def measured(case: Case, sizes: dict[int, tuple[int, ...]], device: torch.device) -> Iterator[dict[str, object]]:
    """Yield what each pass of a convolution takes."""
    torch.backends.cudnn.allow_tf32 = case.precision == "tf32"
    given = tensors(case, sizes, device)
    for name, (run, used) in passes(case, given).items():
        row: dict[str, object] = {
            **asdict(case), "images": sizes[case.axes][0], "pixels": math.prod(sizes[case.axes][1:]), "pass": name,
        }  # fmt: skip
        copied = (each for each in used if each.shape[1] > 1 and each.stride(1) != 1)
        row["copies_bytes"] = sum(each.numel() * each.itemsize for each in copied)
        try:
            peaks = [peak_bytes(run, device) for _ in range(CALLS)]
        except RuntimeError as error:  # not supported, or out of memory
            yield {**row, "error": one_line(error)}
            continue
        yield {**row, "workspace_bytes": peaks[-1] - results_bytes(name, given)}
