"""Runs many cells in worker processes; each becomes a record, whatever happens to it.

    cells -> jobs of one model and batch size, biggest first -> warm workers -> a record for each configuration

Workers stay warm and run whole jobs, so that a model is captured once for all its strategies. No result depends on
the order. A worker that dies takes its job with it and nothing else: what was under way then runs again, a job at a
time in a worker of its own, and the job whose worker dies again fails.
"""

import multiprocessing
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from tqdm import tqdm

from membench.execution.limits import by_line, largest
from membench.experiment import LARGEST
from membench.record import Outcome, Record, Source, configuration_hash

BATCH_SIZE_STEP = 16
"""Largest batches are looked for in multiples of 16, as most of those that Layrub prints are."""

PROBES_PER_SEARCH = 12
"""About how many cells a search for the largest batch runs; only orders the jobs."""

T = TypeVar("T")

Configuration = dict[str, Any]
Job = list[Configuration]


def run_all(
    configurations: Sequence[Configuration],
    *,
    workers: int,
    size: Callable[[Configuration], float],
    run_job: Callable[[Job], list[Record]],
) -> list[Record]:
    """Run every configuration once and return their records in the order given.

    Args:
        configurations: as `run_cells` takes them; a batch size of ``largest`` is searched for.
        workers: processes.
        size: of a configuration's model; the biggest start first.
        run_job: what a worker does with a job: `run_in_worker`, or a stand-in.
    """
    unique = {configuration_hash(configuration): configuration for configuration in configurations}
    jobs = sorted(_jobs(list(unique.values())), key=lambda job: -_effort(job, size))
    records: dict[str, Record] = {}
    with tqdm(total=len(unique), desc="cells", unit="cell", dynamic_ncols=True) as bar:

        def keep(job: Job, made: list[Record]) -> None:
            for configuration, record in zip(job, made, strict=True):
                records[configuration_hash(configuration)] = record
            bar.update(len(job))

        interrupted = _run_jobs(jobs, run_job, keep, workers=workers)
        for job in interrupted:
            for again in _run_jobs([job], run_job, keep, workers=1):
                keep(again, [failed(configuration, "its worker process died") for configuration in again])
    return [records[configuration_hash(configuration)] for configuration in configurations]


def run_in_worker(job: Job) -> list[Record]:
    """Run one job: cells of one model and batch size, or one search for the largest batch."""
    import torch  # takes seconds: in workers alone

    from membench.suite.cell import run_cell, run_cells

    torch.set_num_threads(1)
    if job[0]["batch_size"] == LARGEST:
        return [run_largest(configuration, run_cell) for configuration in job]
    return list(run_cells(job))


def run_fresh(configuration: Configuration) -> Record:
    """Run one cell in a process of its own, so that no cell finds another's memory or chosen kernels."""
    from membench.suite.measured import environment

    made: list[Record] = []
    with _environment(environment(configuration)):
        _run_jobs([[configuration]], run_in_worker, lambda _, records: made.extend(records), workers=1)
    return made[0] if made else failed(configuration, "its worker process died")


def call_fresh(function: Callable[[str], T], argument: str) -> T:
    """Call a function in a process of its own: what it starts, a GPU's context for one, ends with it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, argument).result()


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Let processes that start now inherit these variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def run_largest(
    configuration: Configuration,
    run: Callable[[Configuration], Record],
    *,
    capacity_bytes: int | None = None,
) -> Record:
    """Search for the largest batch that fits the device, and return the record of the cell with that batch.

    Args:
        capacity_bytes: of the device; the search then starts at the batch predicted from what two small ones require.
    """
    tried: dict[int, Record] = {}

    def probe(batch_size: int) -> Record:
        if batch_size not in tried:
            record = run({**configuration, "batch_size": batch_size})
            if record.outcome in (Outcome.FAILED, Outcome.UNSUPPORTED):
                raise _SearchError(record)
            tried[batch_size] = record
        return tried[batch_size]

    try:
        guess = None if capacity_bytes is None else _predict(probe, capacity_bytes)
        found = largest(lambda n: probe(n).outcome is Outcome.OK, step=BATCH_SIZE_STEP, guess=guess)
    except _SearchError as error:
        return error.record
    return tried[found or BATCH_SIZE_STEP]


def _predict(probe: Callable[[int], Record], capacity_bytes: int) -> int | None:
    sizes = (BATCH_SIZE_STEP, 2 * BATCH_SIZE_STEP)
    required = [probe(size).metrics.get("required_memory_bytes") for size in sizes]
    first, second = required
    if first is None or second is None:
        return None
    return by_line((sizes[0], first), (sizes[1], second), capacity_bytes)


class _SearchError(Exception):
    """A cell of a search failed for another reason than its size."""

    def __init__(self, record: Record) -> None:
        super().__init__(record.reason)
        self.record = record


def _jobs(configurations: list[Configuration]) -> list[Job]:
    jobs: defaultdict[tuple[str, Any], Job] = defaultdict(list)
    for configuration in configurations:
        jobs[configuration["model"]["name"], configuration["batch_size"]].append(configuration)
    return list(jobs.values())


def _effort(job: Job, size: Callable[[Configuration], float]) -> float:
    times = PROBES_PER_SEARCH if job[0]["batch_size"] == LARGEST else 1
    return size(job[0]) * times


def _run_jobs(
    jobs: Sequence[Job],
    run_job: Callable[[Job], list[Record]],
    keep: Callable[[Job, list[Record]], None],
    *,
    workers: int,
) -> list[Job]:
    """Run jobs in a pool and return those that were lost because a worker died."""
    interrupted: list[Job] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures: dict[Future[list[Record]], Job] = {}
        for job in jobs:
            try:
                futures[pool.submit(run_job, job)] = job
            except BrokenProcessPool:
                interrupted.append(job)
        for future in as_completed(futures):
            job = futures[future]
            try:
                keep(job, future.result())
            except BrokenProcessPool:
                interrupted.append(job)
            except Exception as error:  # a cell's failure is its record; it never ends a sweep
                keep(
                    job, [failed(configuration, f"{type(error).__name__}: {error}") for configuration in job]
                )
    return interrupted


def failed(configuration: Configuration, reason: str) -> Record:
    """Return the record of a cell that could not run."""
    simulated = configuration["backend"]["name"] == "simulated"
    source = Source.SIMULATED if simulated else Source.MEASURED
    return Record(configuration, configuration_hash(configuration), source, Outcome.FAILED, reason)
