"""Measure plain PyTorch's steps on the GPU at hand, as a data set of `experiments/validation` describes them.

    python -m benchmarks.gpu_steps h200                      rows without a time
    python -m benchmarks.gpu_steps h200 --to FOLDER          the table goes to FOLDER; the data set's stays as it is

The program of a row is built from the description from which it is predicted. Eager rows run in a few processes, one of
which has the GPU at a time. Compiled rows follow, with a process each: as many as have room on a card compile at once,
and then they are measured one after another. The table is written after each row; a row that fails stays as it is, and
the reason is printed.
"""

import argparse
import csv
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from io import StringIO
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import torch

from membench.backends.accelerator_memory import read_memory, reset_readings
from membench.core.configuration import ROOT, instantiate, read
from membench.core.errors import one_line
from membench.core.files import write_whole
from membench.core.graph.precision import Precision
from membench.core.step.arguments import call_with
from membench.core.step.optimizer import made_optimizer
from membench.core.step.workload import Workload
from membench.execution.measurement import synchronize
from membench.lab.validation.dataset import load_dataset
from membench.lab.validation.rows import Row
from membench.sweep.cells.model import Model

FOLDER = ROOT / "experiments" / "validation"
WARM_STEPS, WINDOWS, WINDOW_S = 3, 3, 0.3
EAGER_PROCESSES = 3
COMPILED_PROCESSES = 12

Numbers = dict[str, float]
"""Entries of the table, by their columns."""

_gpu: Any = None
"""Of a process of a pool: the lock of the GPU."""
_compiled: Any = None
"""Likewise: where the processes of compiled rows wait until all that compile at once have compiled."""
_device = torch.device("cpu")
"""Likewise: where steps run."""


def main(arguments: argparse.Namespace) -> None:
    rows = load_dataset(FOLDER, arguments.dataset).rows
    table = FOLDER / f"{arguments.dataset}.csv"
    lines, comments = _read(table)
    due = [row for row, line in zip(rows, lines, strict=True) if not line["step_time_ms"]]
    to = (arguments.to or FOLDER) / table.name
    to.parent.mkdir(parents=True, exist_ok=True)
    for row, future in measured(due):
        name = [row.network, row.step["precision"], row.step.get("kernels", "")]
        if error := future.exception():
            print(*name, f"failed: {one_line(error)}", flush=True)
            continue
        lines[row.number].update(future.result())
        write_whole(to, _text(lines, comments))
        print(*name, *future.result().values(), flush=True)


def measured(rows: Sequence[Row], device: str = "cuda") -> Iterator[tuple[Row, Future[Numbers]]]:
    """Yield each row with what was measured of it, eager rows first: to compile takes all cores, and the longest.

    Args:
        device: type of the device at hand.
    """
    compiled = [row for row in rows if is_compiled(row)]
    eager = [row for row in rows if not is_compiled(row)]
    yield from _in_processes(measured_eager, eager, min(EAGER_PROCESSES, len(eager)), device)
    for first in range(0, len(compiled), COMPILED_PROCESSES):
        at_once = compiled[first : first + COMPILED_PROCESSES]
        yield from _in_processes(measured_compiled, at_once, len(at_once), device)


def _in_processes(
    measure: Callable[[Row], Numbers], rows: Sequence[Row], processes: int, device: str
) -> Iterator[tuple[Row, Future[Numbers]]]:
    if not rows:
        return
    context = get_context("spawn")
    shared = (context.Lock(), context.Barrier(processes), device)
    with ProcessPoolExecutor(processes, context, _begin, shared) as pool:
        pending: dict[Future[Numbers], Row] = {pool.submit(measure, row): row for row in rows}
        while pending:
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for each in done:
                yield pending.pop(each), each


def _begin(gpu: Any, compiled: Any, device: str) -> None:
    global _gpu, _compiled, _device
    _gpu, _compiled, _device = gpu, compiled, torch.device(device)
    torch.set_num_threads(1)


def is_compiled(row: Row) -> bool:
    return row.step.get("kernels") == "inductor"


def measured_eager(row: Row) -> Numbers:
    """Return the table's entries of a row of eager PyTorch."""
    with _gpu:
        run = program(row, _device)
        numbers = _numbers(run)
        del run
        _empty_cache()
    return numbers


def measured_compiled(row: Row) -> Numbers:
    """Return the table's entries of a row whose network and loss are given to `torch.compile`."""
    try:
        run = program(row, _device)
        _warm(run)
    finally:
        _empty_cache()
        _compiled.wait()
    with _gpu:
        return _numbers(run)


def program(row: Row, device: torch.device) -> Callable[[], None]:
    """Return a function that runs a row's step on the device: forward pass, loss, backward pass and update."""
    step = row.step
    precision = Precision.of_step(step["precision"]) if step["precision"] else None
    workload = Model.from_configuration(step["model"]).workload(step["batch_size"], seed=0, device=str(device))
    workload = replace(workload, precision=precision, channels_last=step["channels_last"]).converted()
    clear, update = _update(workload, step["optimizer"])
    whole = _whole_step(workload)
    forward = torch.compile(whole) if is_compiled(row) else whole
    dtype = precision.autocast_dtype if precision else None
    casts: Callable[[], AbstractContextManager[Any]] = (
        (lambda: torch.autocast(device.type, dtype)) if dtype else nullcontext
    )

    def run() -> None:
        clear()
        with casts():
            loss = forward(workload.inputs, workload.targets)
        loss.backward()
        update()

    return run


def _whole_step(workload: Workload) -> Callable[[Any, Any], torch.Tensor]:
    criterion = workload.loss
    assert criterion is not None

    def forward(inputs: Any, targets: Any) -> torch.Tensor:
        return call_with(criterion, targets, call_with(workload.module, inputs))

    return forward


def _update(workload: Workload, described: str | None) -> tuple[Callable[[], None], Callable[[], Any]]:
    if not described:
        return lambda: workload.module.zero_grad(set_to_none=True), lambda: None
    optimizer = made_optimizer(instantiate(read("optimizer", described)), workload.module.parameters())
    return lambda: optimizer.zero_grad(set_to_none=True), optimizer.step


def _warm(run: Callable[[], None]) -> None:
    for _ in range(WARM_STEPS):
        run()
    synchronize(_device)


def _empty_cache() -> None:
    if _device.type != "cpu":
        torch.accelerator.empty_cache()


def _numbers(run: Callable[[], None]) -> Numbers:
    peaks = _peaks(run)
    one_s = _seconds(run, 2)
    steps = max(2, round(WINDOW_S / one_s))
    times = sorted(_seconds(run, steps) for _ in range(WINDOWS))
    return {"step_time_ms": round(median(times) * 1e3, 4), **peaks}


def _peaks(run: Callable[[], None]) -> Numbers:
    """Run the first steps; return what the allocator holds at most, weights included. The CPU's has no such number."""
    if _device.type == "cpu":
        _warm(run)
        return {}
    torch.accelerator.empty_cache()
    reset_readings(_device)
    _warm(run)
    readings = read_memory(_device)
    return {"allocated_bytes": readings.allocated_bytes, "reserved_bytes": readings.reserved_bytes}


def _seconds(run: Callable[[], None], steps: int) -> float:
    synchronize(_device)
    start_s = time.perf_counter()
    for _ in range(steps):
        run()
    synchronize(_device)
    return (time.perf_counter() - start_s) / steps


def _read(table: Path) -> tuple[list[dict[str, Any]], list[str]]:
    text = table.read_text().splitlines()
    comments = [line for line in text if line.startswith("#")]
    return list(csv.DictReader(line for line in text if not line.startswith("#"))), comments


def _text(lines: Sequence[dict[str, Any]], comments: Sequence[str]) -> str:
    file = StringIO()
    writer = csv.DictWriter(file, fieldnames=list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return "".join(f"{comment}\n" for comment in comments) + file.getvalue()


def arguments() -> argparse.Namespace:
    """Return the command's arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--to", type=Path, default=None)
    return parser.parse_args()
