"""Overhead of a sweep per simulated cell: 200 cells of small networks, in one warm worker and without one.

Prints milliseconds a cell: the simulation alone in this process, through a worker with its record kept on disk, and
when the record is found there. The difference of the first two is the overhead. The workers' start is left out.
"""

import statistics
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from hydra import compose

from membench.core import configuration
from membench.core.record import Configuration, Record
from membench.sweep.cells.run import run_cells
from membench.sweep.composition import cell_configuration, hydra_composition
from membench.sweep.processes.worker import Workers
from membench.sweep.results.records import Records

MODELS = ("lenet", "cifar10_quick", "digits_cnn", "alexnet")
STRATEGIES = ("eager", "network_wide", "layrub_hybrid", "vdnn_all", "memonger")
BATCH_SIZES = range(4, 14)


def cells() -> list[Configuration]:
    with hydra_composition():
        usual = cell_configuration(compose("config"))
    return [
        usual
        | {
            "model": configuration.read("model", model),
            "batch_size": batch_size,
            "strategy": configuration.read("strategy", strategy),
        }
        for model, batch_size, strategy in product(MODELS, BATCH_SIZES, STRATEGIES)
    ]


def times_ms(run: Callable[[Configuration], Record], sweep: list[Configuration]) -> list[float]:
    """Return what each cell takes, the cells of a batch size sharing one capture."""
    taken = []
    for cell in sweep:
        start_s = time.perf_counter()
        run(cell)
        taken.append((time.perf_counter() - start_s) * 1e3)
    return taken


def ratios() -> dict[str, float]:
    """Return the median of a cell's time through the suite, and of finding its record, over its simulation's."""
    sweep = cells()
    queue: list[Configuration] = []
    alone = run_cells(iter(queue.pop, None))

    def run_alone(cell: Configuration) -> Record:
        queue.append(cell)
        return next(alone)

    run_alone(sweep[0])
    simulation = times_ms(run_alone, sweep)
    with Workers() as workers, TemporaryDirectory() as directory:
        workers.run(sweep[0])
        through_suite = times_ms(Records(Path(directory), workers.run).run, sweep)
        found = times_ms(Records(Path(directory), workers.run).run, sweep)
    overhead = [whole - part for whole, part in zip(through_suite, simulation, strict=True)]
    print(f"{len(sweep)} simulated cells, ms a cell    mean   median")
    for name, values in (
        ("simulation alone", simulation),
        ("through the suite", through_suite),
        ("overhead of the suite", overhead),
        ("record found on disk", found),
    ):
        print(f"  {name:<28} {statistics.fmean(values):7.1f}  {statistics.median(values):7.1f}")
    alone_ms = statistics.median(simulation)
    return {
        "a cell through the suite over its simulation alone": statistics.median(through_suite) / alone_ms,
        "a record found on disk over the simulation": statistics.median(found) / alone_ms,
    }


if __name__ == "__main__":
    ratios()
