"""Step times of `gradient_checkpointing_enable()`, and of `joint` within its peak of memory.

    python benchmarks/checkpointing.py                                          one network on one device
    python benchmarks/checkpointing.py --networks all --devices all --results results/checkpointing

Networks are of transformers, in mixed precision (bfloat16); devices are simulated. A plan that takes no longer in no
more memory shows both: at the program's peak `joint` is not slower, and at the program's time it needs no more memory.
`--results` adds each line to FOLDER/rows.jsonl, goes on where an earlier run ended, and writes FOLDER/README.md.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import geometric_mean

from membench.capture.capture import Captures
from membench.core.configuration import load
from membench.core.files import write_whole
from membench.core.graph.precision import Precision
from membench.core.units import GIB
from membench.cost.roofline import RooflineCost
from membench.execution.simulation import step_time_s
from membench.models.hugging_face import options_of
from membench.steps.plan import plan
from membench.strategies.joint.strategy import Joint
from membench.strategies.pytorch import PyTorch
from membench.sweep.cells.model import Model

NETWORKS = {
    "gpt2": 8, "gpt2_medium": 8, "bert_base": 32, "bert_large": 16, "llama_1b": 2, "opt_1_3b": 2, "t5_small": 16,
    "hf/vit": 64,
}  # fmt: skip
"""Batch sizes."""
DEVICES = ("rtx3090", "a100_80gb", "h100")
PAGE = """# `joint` in the memory of checkpointing

Made by `python benchmarks/checkpointing.py --networks all --devices all --results results/checkpointing`, on simulated
cards, in mixed precision (bfloat16). The program is a network of transformers after `gradient_checkpointing_enable()`;
its peak is `joint`'s budget. *Ratio*: `joint`'s step time over the program's. The gap is that to `joint`'s lower bound.

| network | batch | device | without checkpointing | with | `joint` | ratio | gap | planned in |
|---|---:|---|---:|---:|---:|---:|---:|---:|
"""


@dataclass(frozen=True)
class Row:
    """A network with checkpointing, and joint at its peak.

    Attributes:
        plain_bytes, plain_s: peak and seconds of the step without checkpointing; likewise with it, and of `joint`.
        planning_s: seconds of CPU time of joint's plan.
    """

    network: str
    batch_size: int
    device: str
    plain_bytes: int
    plain_s: float
    checkpointed_bytes: int
    checkpointed_s: float
    joint_bytes: int
    joint_s: float
    gap: float
    planning_s: float

    @property
    def ratio(self) -> float:
        return self.joint_s / self.checkpointed_s

    def __str__(self) -> str:
        cells = [self.network, str(self.batch_size), self.device]
        cells += [
            f"{held_bytes / GIB:.2f} GiB, {time_s * 1e3:.0f} ms"
            for held_bytes, time_s in (
                (self.plain_bytes, self.plain_s),
                (self.checkpointed_bytes, self.checkpointed_s),
                (self.joint_bytes, self.joint_s),
            )
        ]
        return f"| {' | '.join([*cells, f'{self.ratio:.3f}', f'{self.gap:.1%}', f'{self.planning_s:.1f} s'])} |"


def row_of(network: str, device: str) -> Row:
    """Return the row of a network on a device."""
    framework = load("framework", "pytorch")
    cost = RooflineCost(load("device", device), framework.efficiency)
    library, _, name = network.rpartition("/")
    model = Model.from_configuration(options_of(name)) if library else Model.named(name)
    batch_size = NETWORKS[network]
    workload = replace(model.workload(batch_size, seed=0, device="meta"), precision=Precision.AMP_BF16)

    plain = plan(Captures(workload, framework.captured_on).graph_at(batch_size), PyTorch(), cost, None)
    workload.module.gradient_checkpointing_enable()
    step = Captures(workload, framework.captured_on).graph_at(batch_size)
    checkpointed = plan(step, PyTorch(), cost, None)
    start_s = time.process_time()
    joint = plan(step, Joint(), cost, checkpointed.peak_bytes)
    return Row(
        network=network,
        batch_size=batch_size,
        device=device,
        plain_bytes=plain.peak_bytes,
        plain_s=step_time_s(plain, cost),
        checkpointed_bytes=checkpointed.peak_bytes,
        checkpointed_s=step_time_s(checkpointed, cost),
        joint_bytes=joint.peak_bytes,
        joint_s=step_time_s(joint, cost),
        gap=float(dict(joint.decisions)["gap"]),
        planning_s=time.process_time() - start_s,
    )


def summary(rows: Sequence[Row]) -> str:
    """Return a line on all ratios."""
    ratios = [row.ratio for row in rows]
    slower = sum(ratio > 1 for ratio in ratios)
    return (
        f"{len(rows)} cells: geometric mean of the ratio {geometric_mean(ratios):.3f}, largest {max(ratios):.4f}; "
        f"joint is slower in {slower}, and holds more in "
        f"{sum(row.joint_bytes > row.checkpointed_bytes for row in rows)}"
    )


def main(arguments: argparse.Namespace) -> None:
    file = arguments.results / "rows.jsonl" if arguments.results else None
    rows = [Row(**json.loads(line)) for line in file.read_text().splitlines()] if file and file.exists() else []
    done = {(row.network, row.device) for row in rows}
    cells = [cell for cell in product(arguments.networks, arguments.devices) if cell not in done]
    if cells:
        with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
            for row in pool.map(row_of, *zip(*cells, strict=True)):
                print(row, flush=True)
                rows.append(row)
                if file:
                    file.parent.mkdir(parents=True, exist_ok=True)
                    with file.open("a") as opened:
                        opened.write(json.dumps(asdict(row)) + "\n")
    print(summary(rows))
    if file:
        write_whole(file.parent / "README.md", PAGE + "".join(f"{row}\n" for row in rows) + f"\n{summary(rows)}.\n")


def ratios() -> dict[str, float]:
    """Return `joint`'s time over the program's, in no more memory."""
    row = row_of("gpt2", "a100_80gb")
    print(row, flush=True)
    return {f"joint's time over that of checkpointing, {row.network} on {row.device}": row.ratio}


def _names(known: Iterable[str]) -> Callable[[str], list[str]]:
    return lambda text: list(known) if text == "all" else text.split(",")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=_names(NETWORKS), default="gpt2")
    parser.add_argument("--devices", type=_names(DEVICES), default="a100_80gb")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    main(parser.parse_args())
