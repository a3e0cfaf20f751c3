"""Compare today's tools with membench's strategies, and write a page.

    python -m benchmarks.compare --results results/compare                    every network
    python -m benchmarks.compare --results FOLDER --networks 'resnet50;unet'  some
    python -m benchmarks.compare --results FOLDER --peers checkpoint          without the other peers
    python -m benchmarks.compare --results FOLDER --strategies 'auto;joint'   without the other strategies

Each network's rows go to FOLDER/rows.jsonl as soon as it is done; one that has rows of every peer in question is not
run again. FOLDER/README.md and the pictures are written from all of them.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.compare.judged import frontier
from benchmarks.compare.networks import NETWORKS
from benchmarks.compare.page import page, picture_name, title
from benchmarks.compare.peers import INFERENCE_PEERS, TRAINING_PEERS
from benchmarks.compare.row import INFERENCE, TRAINING, Row
from benchmarks.compare.run import PEERS, is_due, rows_of
from membench.core.errors import MembenchError
from membench.core.files import write_whole
from membench.core.graph.task_graph import Mode
from membench.pictures.frontier import draw, save
from membench.strategies.base import strategies
from membench.sweep.cells.measured import CPU_ENVIRONMENT
from membench.sweep.results.provenance import device_facts_from_outside, provenance

SEPARATOR = ";"
"""Of names in an option; some have a comma."""
PACKAGES = ("accelerate", "deepspeed", "torchtune", "trl", "transformers")
THREADS = 1
"""That compute: copies have another core, as on a GPU."""


def main(arguments: argparse.Namespace) -> None:
    if arguments.backend == "cpu":
        os.environ.update(CPU_ENVIRONMENT, OMP_NUM_THREADS=str(THREADS), TORCHINDUCTOR_COMPILE_THREADS="1")
    folder = arguments.results
    folder.mkdir(parents=True, exist_ok=True)
    lines, runs = folder / "rows.jsonl", folder / "provenance.jsonl"
    rows = [Row(**each) for each in _read(lines)]
    for network, mode in product(arguments.networks, arguments.modes):
        peers = [name for name in PEERS[mode] if name in arguments.peers]
        if not is_due(rows, network, mode, peers):
            continue
        print(network, mode, flush=True)
        facts = {
            "network": network,
            "mode": mode,
            **device_facts_from_outside(arguments.backend),
            **_provenance(),
            "load": os.getloadavg()[0],
        }
        found = rows_of(network, mode, peers, arguments.strategies, arguments.backend, arguments.time_limit_s)
        rows = [row for row in rows if (row.network, row.mode) != (network, mode)] + found
        _write(lines, [asdict(row) for row in rows])
        _write(runs, [run for run in _read(runs) if (run["network"], run["mode"]) != (network, mode)] + [facts])
        show(rows, _read(runs), folder)
    show(rows, _read(runs), folder)


def show(rows: Sequence[Row], runs: Sequence[dict[str, Any]], folder: Path) -> None:
    """Write the page and the pictures."""
    for network, mode in dict.fromkeys((row.network, row.mode) for row in rows):
        own = [row for row in rows if (row.network, row.mode) == (network, mode)]
        save(draw(frontier(own, title(network, mode))), folder / picture_name(network, mode))
    write_whole(folder / "README.md", page(rows, runs))


def _provenance() -> dict[str, Any]:
    found = provenance()
    for name in PACKAGES:
        try:
            found["versions"][name] = version(name)
        except PackageNotFoundError:
            found["versions"][name] = "not installed"
    return {**found, "cores": len(os.sched_getaffinity(0)), "threads": THREADS}


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _write(path: Path, found: Sequence[dict[str, Any]]) -> None:
    write_whole(path, "".join(json.dumps(each) + "\n" for each in found))


def _of(kind: str, known: Sequence[str]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        found = list(known) if text == "all" else [name.strip() for name in text.split(SEPARATOR)]
        if unknown := set(found) - set(known):
            raise argparse.ArgumentTypeError(
                f"there is no {kind} {', '.join(sorted(unknown))}; there are {SEPARATOR.join(known)}"
            )
        return found

    return names


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", type=_of("network", list(NETWORKS)), default="all")
    parser.add_argument("--peers", type=_of("peer", [*TRAINING_PEERS, *INFERENCE_PEERS]), default="all")
    parser.add_argument(
        "--strategies", type=_of("strategy", list({**strategies(), **strategies(Mode.INFERENCE)})), default="all"
    )
    parser.add_argument("--modes", type=_of("mode", [TRAINING, INFERENCE]), default="all")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--time-limit-s", type=float, default=1200.0, help="of a peer's own process")
    try:
        main(parser.parse_args())
    except MembenchError as error:
        print(f"compare: {error}", file=sys.stderr)
        sys.exit(2)
