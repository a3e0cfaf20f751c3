"""Run benchmarks of membench itself and keep their ratios over commits.

    python -m benchmarks                          all of them
    python -m benchmarks codecs eager_overhead    some of them

Each runs in a process of its own and prints what it measures. Its ratios at this commit, with those kept last, are
printed and go to results/benchmarks; a checkout with changes keeps none.
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from benchmarks.ratios import earlier, keep, ratios_of, read
from membench.core.errors import MembenchError
from membench.sweep.cells.measured import CPU_ENVIRONMENT
from membench.sweep.results.provenance import provenance

BENCHMARKS = (
    "checkpointing", "codecs", "compiled", "cpu_prediction", "depth", "eager_overhead", "inference_offload", "joint",
    "long_run", "own_time", "prediction", "sharded", "simulated_cells", "suite_overhead", "watched_state",
)  # fmt: skip
RESULTS = Path(__file__).parents[1] / "results" / "benchmarks"


def run(benchmark: str, folder: Path) -> None:
    """Run a benchmark, print its ratios next to those kept last, and keep them.

    Raises:
        MembenchError: its process ended.
    """
    print(f"== {benchmark}", flush=True)
    facts = provenance()
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        try:
            found = pool.submit(ratios_of, benchmark).result()
        except BrokenProcessPool:
            raise MembenchError(f"{benchmark}: its process ended; it may need more memory") from None
    kept = read(folder)
    for ratio, value in found.items():
        before = earlier(kept, benchmark, ratio, facts["commit"])
        print(f"  {ratio}: {value:.3f}" + ("" if before is None else f", before {before:.3f}"), flush=True)
    if found and facts["clean"]:
        keep(folder, benchmark, found, facts)
    elif found:
        print("  not kept: the checkout has changes", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmarks", nargs="*", choices=BENCHMARKS, default=BENCHMARKS, metavar="benchmark")
    os.environ.update(CPU_ENVIRONMENT)  # glibc reads it when a process starts
    try:
        for name in parser.parse_args().benchmarks:
            run(name, RESULTS)
    except MembenchError as error:
        sys.exit(f"benchmarks: {error}")
