"""Measure plain PyTorch's steps on the GPU at hand, as a data set of `experiments/validation` describes them, and fill in its table.

    python -m benchmarks.gpu_steps h200                      rows without a time
    python -m benchmarks.gpu_steps h200 --to FOLDER          the table goes to FOLDER; the data set's stays as it is

The program of a row is built from the description from which it is predicted. Eager rows run in a few processes, one of which
has the GPU at a time. Compiled rows have a process each: all of them compile at once, and then they are measured one after
another. The table is written after each row; a row that fails stays as it is, and the reason is printed.
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

from membench.core.arguments import call_with
from membench.core.configuration import ROOT, instantiate, read
from membench.core.errors import one_line
from membench.core.files import write_whole
from membench.core.optimizer import made_optimizer
from membench.core.precision import Precision
from membench.core.workload import Workload
from membench.sweep.cells.model import Model
from membench.validation.dataset import load_dataset
from membench.validation.rows import Row

FOLDER = ROOT / "experiments" / "validation"
WARM_STEPS, WINDOWS, WINDOW_S = 3, 3, 0.3
EAGER_PROCESSES = 3

Numbers = dict[str, float]
"""Entries of the table, by their columns."""

_gpu: Any = None
"""Of a process of a pool: the lock of the GPU."""
_compiled: Any = None
"""Likewise: where the processes of compiled rows wait until all of them have compiled."""


def main(arguments: argparse.Namespace) -> None:
    rows = load_dataset(FOLDER, arguments.dataset).rows
    table = FOLDER / f"{arguments.dataset}.csv"
    lines, comments = _read(table)
    due = [row for row, line in zip(rows, lines, strict=True) if not line["step_time_ms"]]
    to = (arguments.to or FOLDER) / table.name
    to.parent.mkdir(parents=True, exist_ok=True)
    for row, future in _measured(due):
        name = [row.network, row.step["precision"], row.step.get("kernels", "")]
        if error := future.exception():
            print(*name, f"failed: {one_line(error)}", flush=True)
            continue
        lines[row.number].update(future.result())
        write_whole(to, _text(lines, comments))
        print(*name, *future.result().values(), flush=True)


def _measured(rows: Sequence[Row]) -> Iterator[tuple[Row, Future[Numbers]]]:
    """Yield each row with what was measured of it, compiled rows first."""
    compiled = [row for row in rows if is_compiled(row)]
    yield from _in_processes(measured_compiled, compiled, len(compiled))
    yield from _in_processes(measured_eager, [row for row in rows if not is_compiled(row)], EAGER_PROCESSES)


def _in_processes(
    measure: Callable[[Row], Numbers], rows: Sequence[Row], processes: int
) -> Iterator[tuple[Row, Future[Numbers]]]:
    if not rows:
        return
    context = get_context("spawn")
    shared = (context.Lock(), context.Barrier(processes))
    with ProcessPoolExecutor(processes, context, _begin, shared) as pool:
        pending: dict[Future[Numbers], Row] = {pool.submit(measure, row): row for row in rows}
        while pending:
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for each in done:
                yield pending.pop(each), each


def _begin(gpu: Any, compiled: Any) -> None:
    global _gpu, _compiled
    _gpu, _compiled = gpu, compiled
    torch.set_num_threads(1)


def is_compiled(row: Row) -> bool:
    return row.step.get("kernels") == "inductor"


def measured_eager(row: Row) -> Numbers:
    """Return the table's entries of a row of eager PyTorch."""
    with _gpu:
        run = program(row)
        numbers = _numbers(run)
        del run
        torch.cuda.empty_cache()
    return numbers


def measured_compiled(row: Row) -> Numbers:
    """Return the table's entries of a row whose network and loss are given to `torch.compile`."""
    try:
        run = program(row)
        _warm(run)
    finally:
        torch.cuda.empty_cache()
        _compiled.wait()
    with _gpu:
        return _numbers(run)


def program(row: Row) -> Callable[[], None]:
    """Return a function that runs a row's step on the GPU: forward pass, loss, backward pass and update."""
    step = row.step
    precision = Precision.of_step(step["precision"]) if step["precision"] else None
    workload = Model.from_configuration(step["model"]).workload(step["batch_size"], seed=0, device="cuda")
    workload = replace(workload, precision=precision, channels_last=step["channels_last"]).converted()
    clear, update = _update(workload, step["optimizer"])
    whole = _whole_step(workload)
    forward = torch.compile(whole) if is_compiled(row) else whole
    dtype = precision.autocast_dtype if precision else None
    casts: Callable[[], AbstractContextManager[Any]] = (
        (lambda: torch.autocast("cuda", dtype)) if dtype else nullcontext
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
    torch.cuda.synchronize()


def _numbers(run: Callable[[], None]) -> Numbers:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    _warm(run)
    peaks = {
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }
    one_s = _seconds(run, 2)
    steps = max(2, round(WINDOW_S / one_s))
    times = sorted(_seconds(run, steps) for _ in range(WINDOWS))
    return {"step_time_ms": round(median(times) * 1e3, 4), **peaks}


def _seconds(run: Callable[[], None], steps: int) -> float:
    torch.cuda.synchronize()
    start_s = time.perf_counter()
    for _ in range(steps):
        run()
    torch.cuda.synchronize()
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset")
    parser.add_argument("--to", type=Path, default=None)
    return parser.parse_args()
