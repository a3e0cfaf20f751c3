"""Joint under FSDP, at the memory of the program's own checkpointing: its step time over that of the program.

    python benchmarks/sharded.py                          one network on one cluster
    python benchmarks/sharded.py --all --results FOLDER   six networks on three clusters, checkpointed in full and
                                                          in parts: an hour

Eight GPUs, simulated; weights in shards over all of them, gathered in bfloat16, gradients added up in single precision,
AdamW. The program checkpoints every block (full) or all but products and attention (selective, as torchtitan's `op`),
under plain PyTorch. `joint` plans the same step without these regions, with the program's allocated peak as its budget.
Prints a line for each; `--results` adds them to FOLDER/rows.csv as soon as they are made, goes on where an earlier run
ended, and writes FOLDER/README.md.
"""

import argparse
import csv
import time
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from statistics import geometric_mean

import torch

import membench
from membench.core.files import write_whole
from membench.models.llama import Llama, TokenLoss

NETWORKS = {
    "tinyllama_1b": {"layers": 22, "width": 2048, "heads": 32, "groups": 4, "inner": 5632, "vocabulary": 32000},
    "llama3_1b": {"layers": 16, "width": 2048, "heads": 32, "groups": 8, "inner": 8192, "vocabulary": 128256},
    "llama3_3b": {"layers": 28, "width": 3072, "heads": 24, "groups": 8, "inner": 8192, "vocabulary": 128256},
    "llama2_7b": {"layers": 32, "width": 4096, "heads": 32, "groups": 32, "inner": 11008, "vocabulary": 32000},
    "mistral_7b": {"layers": 32, "width": 4096, "heads": 32, "groups": 8, "inner": 14336, "vocabulary": 32000},
    "llama3_8b": {"layers": 32, "width": 4096, "heads": 32, "groups": 8, "inner": 14336, "vocabulary": 128256},
}
CLUSTERS = ("dgx_a100_40gb", "dgx_h100", "rtx4090x8")
CHECKPOINTING = {"full": "full", "selective": "op"}
LENGTH = 4096
COLUMNS = ("network", "cluster", "checkpointing", "budget_bytes", "program_s", "joint_s", "host_bytes", "planning_s")
PAGE = """# `joint` under FSDP

Made by `python benchmarks/sharded.py --all --results results/sharded`; every row is in `rows.csv`. Simulated. Eight
GPUs, one sequence of 4,096 tokens each: `joint`'s step time over that of the program, whose allocated peak is its
budget, when the program checkpoints every block (full), or all but products and attention (selective). `joint` may copy
to host memory, over links that two GPUs share in the clusters with NVLink.

| checkpointing | cluster | networks | geometric mean | largest | |---|---|---:|---:|---:|
"""

Row = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--results", type=Path)
    arguments = parser.parse_args()
    cells = product(NETWORKS, CLUSTERS) if arguments.all else [("tinyllama_1b", CLUSTERS[0])]
    rows = _read(arguments.results)
    done = {(row["network"], row["cluster"], row["checkpointing"]) for row in rows}
    for (network, cluster), checkpointing in product(cells, CHECKPOINTING):
        if (network, cluster, checkpointing) in done:
            continue
        rows.append(compared(network, cluster, checkpointing))
        print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
        if arguments.results:
            _write(arguments.results, rows)
    for line in summary(rows):
        print(line)


def ratios() -> dict[str, float]:
    """Return `joint`'s time over the program's, by its checkpointing."""
    network, cluster = "tinyllama_1b", CLUSTERS[0]
    rows = [compared(network, cluster, checkpointing) for checkpointing in CHECKPOINTING]
    print(*summary(rows), sep="\n", flush=True)
    return {
        f"joint's time over that of {row['checkpointing']} checkpointing, {network} on {cluster}": _ratio(row)
        for row in rows
    }


def compared(network: str, cluster: str, checkpointing: str) -> Row:
    """Return the step times of the program and of `joint` in its memory."""
    with torch.device("meta"):
        module = Llama(**NETWORKS[network], length=LENGTH, checkpointing=CHECKPOINTING[checkpointing])
        tokens = torch.zeros(1, LENGTH, dtype=torch.long)

    def predicted(**options: object) -> membench.Prediction:
        return membench.predict(
            module, TokenLoss(), (tokens, tokens), cluster=cluster, precision="bf16", optimizer="adamw",
            reduce_dtype=torch.float32, **options,  # type: ignore[arg-type]
        )  # fmt: skip

    program = predicted()
    start_s = time.process_time()
    joint = predicted(strategy="joint", budget=program.allocated_bytes)
    planning_s = time.process_time() - start_s
    values = (
        network, cluster, checkpointing, program.allocated_bytes, f"{program.step_time_s:.6g}",
        f"{joint.step_time_s:.6g}",
        joint.host_bytes, f"{planning_s:.1f}",
    )  # fmt: skip
    return dict(zip(COLUMNS, map(str, values), strict=True))


def summary(rows: Iterable[Row]) -> list[str]:
    """Return a line of a table for each way of checkpointing and each cluster."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        for cluster in (row["cluster"], "all"):
            found.setdefault((row["checkpointing"], cluster), []).append(_ratio(row))
    return [
        f"| {checkpointing} | {cluster} | {len(ratios)} | {geometric_mean(ratios):.3f} | {max(ratios):.3f} |"
        for (checkpointing, cluster), ratios in sorted(found.items())
    ]


def _ratio(row: Row) -> float:
    return float(row["joint_s"]) / float(row["program_s"])


def _read(folder: Path | None) -> list[Row]:
    path = folder and folder / "rows.csv"
    if not path or not path.exists():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def _write(folder: Path, rows: list[Row]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [",".join(COLUMNS), *(",".join(row.values()) for row in rows)]
    write_whole(folder / "rows.csv", "\n".join(lines) + "\n")
    write_whole(folder / "README.md", PAGE + "\n".join(summary(rows)) + "\n")


if __name__ == "__main__":
    main()
