"""Concurrent runs of many cells.

    cells -> jobs of one model and batch size, biggest first -> threads, each with a warm worker -> a record for each
    cell

A worker keeps the model that it captured last, so the strategies of a job share it. Results do not depend on the order.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from membench.core.record import LARGEST, Configuration, Record, configuration_hash
from membench.core.terminal import progress_bar

PROBES_PER_SEARCH = 12
"""Approximate number of cells in a search for the largest batch; only orders the jobs."""

Job = list[Configuration]


def run_all(
    configurations: Sequence[Configuration],
    run: Callable[[Configuration], Record],
    *,
    workers: int,
    size: Callable[[Configuration], float],
    stop: Callable[[], None],
) -> list[Record]:
    """Run every configuration once and return their records in the order given.

    Args:
        run: runs one cell, as `Records.run` does; called from `workers` threads.
        workers: number of threads.
        size: size of a configuration's model; the biggest start first.
        stop: makes `run` raise in every thread; called on an interrupt.
    """
    unique = {configuration_hash(configuration): configuration for configuration in configurations}
    records: dict[str, Record] = {}
    with ThreadPoolExecutor(workers) as pool, progress_bar("cells", "cell", len(unique)) as bar:

        def run_job(job: Job) -> None:
            for configuration in job:
                records[configuration_hash(configuration)] = run(configuration)
                bar.update()

        try:
            for done in as_completed([pool.submit(run_job, job) for job in _jobs(unique.values(), size)]):
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stop()
            raise
    return [records[configuration_hash(configuration)] for configuration in configurations]


def _jobs(configurations: Iterable[Configuration], size: Callable[[Configuration], float]) -> list[Job]:
    """Return cells of one model and batch size together, the biggest first."""
    jobs: defaultdict[tuple[str, Any], Job] = defaultdict(list)
    for configuration in configurations:
        jobs[configuration["model"]["name"], configuration["batch_size"]].append(configuration)

    def effort(job: Job) -> float:
        return size(job[0]) * (PROBES_PER_SEARCH if job[0]["batch_size"] == LARGEST else 1)

    return sorted(jobs.values(), key=effort, reverse=True)
