"""The record of depth: steps too large for their cards, planned, validated and simulated, and run on the CPU.

    python benchmarks/depth_record/run.py             every network of experiments/depth_record.yaml
    python benchmarks/depth_record/run.py resnet1922  one; the rows of the others stay

Each row is planned in a process of its own, whose time and memory are part of the result, and written to
results/depth_record as soon as it is made.
"""

import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml
from hydra import compose

import membench
from membench.core.configuration import ROOT, instantiate
from membench.core.errors import MembenchError, one_line
from membench.core.files import write_whole
from membench.core.graph.schedule import Offload, RepeatedSchedule
from membench.core.record import Configuration
from membench.core.tables import format_number, read_csv, write_csv
from membench.core.units import GIB, KIB
from membench.planning.memory.device_memory import device_memory
from membench.steps.arguments import in_process
from membench.steps.simulated_step import simulated_step
from membench.sweep.cells.cell import Cell
from membench.sweep.cells.graphs import Graphs
from membench.sweep.cells.simulated import planned_step
from membench.sweep.composition import cell_configuration, hydra_composition

DESCRIBED = ROOT / "experiments" / "depth_record.yaml"
RESULTS = ROOT / "results" / "depth_record"
SIMULATED, RUN = RESULTS / "simulated.csv", RESULTS / "run_on_cpu.csv"
COLUMNS = {
    SIMULATED: [
        "network", "method", "outcome", "reason", "tasks", "peak_bytes", "reserved_bytes", "step_time_s",
        "compute_time_s", "host_bytes", "transferred_bytes", "lower_bound_s", "capture_time_s", "planning_time_s",
        "planning_memory_bytes",
    ],
    RUN: [
        "network", "method", "outcome", "reason", "exact", "layers", "samples", "image", "parameters", "budget",
        "peak_bytes", "step_time_s", "process_memory_bytes",
    ],
}  # fmt: skip
ALLOCATOR = "expandable_segments:True"
OK, OWN_MANAGER = "ok", "only with a memory manager of its own"
SAMPLES = 2
"""On the CPU."""

Row = dict[str, str]


def main(names: Sequence[str]) -> int:
    described = yaml.safe_load(DESCRIBED.read_text())
    networks, limit_s = described["networks"], described["time_limit_s"]
    if unknown := set(names) - networks.keys():
        print(f"there is no network {', '.join(sorted(unknown))}; there are: {', '.join(networks)}", file=sys.stderr)
        return 2
    for name in names or networks:
        network = networks[name]
        for strategy, budget in network.get("cpu", {}).get("strategies", {}).items():
            row = in_a_process(run_on_cpu, (network["cpu"], strategy, budget), limit_s)
            keep(RUN, {"network": name, "method": strategy, **row}, networks)
        for method in network["methods"]:
            row = in_a_process(simulate, (composed([*network["words"], *method]),), limit_s)
            keep(SIMULATED, {"network": name, "method": " ".join(method), **row}, networks)
    return 0


def keep(table: Path, row: Row, networks: Mapping[str, Any]) -> None:
    """Print a row, and write its table with it in its place, and the page."""
    print(row, flush=True)
    key = ("network", "method")
    rows = {tuple(each[name] for name in key): each for each in read(table)}
    rows[tuple(row[name] for name in key)] = row
    order = [
        (name, method)
        for name, network in networks.items()
        for method in (*network.get("cpu", {}).get("strategies", ()), *map(" ".join, network["methods"]))
    ]
    ordered = [rows[of] for of in order if of in rows]
    write_csv(pd.DataFrame(ordered, columns=COLUMNS[table], dtype=object).fillna(""), table)
    write_page(read(SIMULATED), read(RUN), networks)


def read(table: Path) -> list[Row]:
    return read_csv(table) if table.exists() else []


def composed(words: Sequence[str]) -> Configuration:
    with hydra_composition():
        return cell_configuration(compose("config", list(words)))


def in_a_process(function: Callable[..., Row], arguments: Sequence[Any], limit_s: float) -> Row:
    """Return the function's row, or the reason why there is none."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        try:
            return pool.submit(function, *arguments).result(limit_s)
        except MembenchError as error:
            return {"outcome": "not run", "reason": one_line(error)}
        except TimeoutError:
            for process in (pool._processes or {}).values():
                process.kill()
            return {"outcome": "not run", "reason": f"not done after {limit_s} s"}
        except BrokenProcessPool:
            return {"outcome": "not run", "reason": "its process was killed: the machine's memory is used up"}


def simulate(configuration: Configuration) -> Row:
    """Plan, validate and simulate a step."""
    torch.set_num_threads(1)
    cell = Cell.from_configuration(configuration)
    graphs = Graphs()
    start_s = time.process_time()
    graphs.lowered_at(cell, cell.batch_size)(cell.batch_size)
    captured_s = time.process_time()
    found = {"capture_time_s": f"{captured_s - start_s:.0f}"}
    try:
        plan = planned_step(cell, graphs)
    except MembenchError as error:
        return {"outcome": "not run", "reason": one_line(error), **found, **spent(captured_s)}
    found |= spent(captured_s)
    step = simulated_step(plan, cell.cost)
    measured = step.measure()
    capacity = cell.simulated_device.memory_bytes
    reserved = device_memory(plan, in_process(cell.simulated_device, {"allocator": ALLOCATOR})).reserved_bytes
    outcome = OK if reserved <= capacity else OWN_MANAGER if step.predicted_peak_bytes <= capacity else "out of memory"
    return {
        "outcome": outcome,
        "reason": "" if outcome == OK else f"the device has {capacity:,} bytes",
        "tasks": str(max(len(part.schedule.graph.tasks) for part in plan)),
        "peak_bytes": str(step.predicted_peak_bytes),
        "step_time_s": format_number(step.step_time_s),
        "compute_time_s": format_number(measured.compute_time_s),
        "reserved_bytes": str(reserved),
        "host_bytes": str(max(host_bytes(part) for part in plan)),
        "transferred_bytes": str(measured.offloaded_bytes + measured.prefetched_bytes),
        "lower_bound_s": format_number(dict(plan[0].schedule.decisions).get("lower_bound_s")),
        **found,
    }


def host_bytes(part: RepeatedSchedule) -> int:
    """Return the bytes of all blocks that have a place in host memory, each counted once."""
    graph = part.schedule.graph
    home = {block.index for block in graph.blocks if block.host_location and not block.is_part}
    return graph.size_bytes(home | {each.block for each in part.schedule.instructions if isinstance(each, Offload)})


def spent(since_s: float) -> Row:
    """Return the seconds of CPU time of planning and validation, and the process's memory, capture included."""
    return {
        "planning_time_s": f"{time.process_time() - since_s:.0f}",
        "planning_memory_bytes": str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB),
    }


def run_on_cpu(described: Mapping[str, Any], strategy: str, budget: str | None) -> Row:
    """Run a step on the CPU, and compare loss and gradients with plain PyTorch's, bit by bit."""
    torch.manual_seed(0)
    module, size = instantiate(described["module"]), described["image"]
    batch = torch.randn(SAMPLES, 3, size, size), torch.randint(10, (SAMPLES,))
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    expected = torch.nn.functional.cross_entropy(module(batch[0]), batch[1])
    expected.backward()
    gradients = {name: weight.grad for name, weight in module.named_parameters()}
    module.zero_grad(set_to_none=True)
    for name, buffer in module.named_buffers():
        buffer.copy_(buffers[name])
    step = membench.compile(
        module, torch.nn.functional.cross_entropy, batch, strategy=strategy, budget=budget, backend="cpu"
    )
    start_s = time.perf_counter()
    loss = step(*batch)
    time_s = time.perf_counter() - start_s
    is_exact = torch.equal(loss, expected.detach()) and all(
        torch.equal(weight.grad, gradients[name]) for name, weight in module.named_parameters()
    )
    return {
        "outcome": "ok" if is_exact else "other results than plain PyTorch",
        "exact": "yes" if is_exact else "no",
        "layers": str(described["module"]["depth"]),
        "samples": str(SAMPLES),
        "image": str(size),
        "budget": budget or "",
        "peak_bytes": str(step.predicted_peak_bytes),
        "parameters": str(sum(weight.numel() for weight in module.parameters())),
        "step_time_s": format_number(time_s),
        "process_memory_bytes": str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB),
    }


def write_page(simulated: Sequence[Row], run: Sequence[Row], networks: Mapping[str, Any]) -> None:
    lines = [
        "# The record of depth",
        "",
        "Made by `make depth-record` from `experiments/depth_record.yaml`; every number in `simulated.csv` and "
        "`run_on_cpu.csv`. A",
        "step is planned, its schedule validated and then simulated; nothing was allocated. *Host* is all that has a "
        "place in host",
        "memory, each block counted once; *planning* is the seconds of CPU time and the memory of the process that "
        "captured,",
        "planned and validated. *Reserved* is what PyTorch's caching allocator would hold for it with expandable "
        "segments: moDNN plans for a",
        "memory manager of its own, and where reserved exceeds the card, its plan needs that manager.",
        "",
        "| network | method | outcome | peak | reserved | step | host | planning |",
        "|---|---|---|---:|---:|---:|---:|---:|",
        *map(_line, simulated),
        "",
        *(_published(name, network, simulated) for name, network in networks.items()),
        "",
        "Really run on the CPU, the loss and all gradients compared with plain PyTorch's bit by bit:",
        "",
        "| network | method | layers | batch | outcome | exact | peak | step, s |",
        "|---|---|---:|---:|---|---|---:|---:|",
        *map(_run_line, run),
    ]
    write_whole(Path(RESULTS / "README.md"), "\n".join(lines) + "\n")


def _published(name: str, network: Mapping[str, Any], simulated: Sequence[Row]) -> str:
    missing = [
        " ".join(method)
        for method in network["methods"]
        if not any(row["network"] == name and row["method"] == " ".join(method) for row in simulated)
    ]
    return f"- {name}: {network['record']}." + (f" Not run yet: {'; '.join(missing)}." if missing else "")


def _line(row: Row) -> str:
    method = row["method"].replace("strategy=", "", 1)
    size = {name: f"{int(row[name]) / GIB:,.1f} GB" if row.get(name) else "" for name in SIZES}
    step = f"{float(row['step_time_s']):,.3g} s" if row.get("step_time_s") else ""
    planning = f"{row['planning_time_s']} s, {size['planning_memory_bytes']}" if row.get("planning_time_s") else ""
    outcome = row["outcome"] if row["outcome"] != "not run" else f"not run: {row['reason']}"
    held = f"{size['peak_bytes']} | {size['reserved_bytes']} | {step} | {size['host_bytes']}"
    return f"| {row['network']} | {method} | {outcome} | {held} | {planning} |"


SIZES = ("peak_bytes", "reserved_bytes", "host_bytes", "planning_memory_bytes")


def _run_line(row: Row) -> str:
    layers, samples, time_s = (row.get(name, "") for name in ("layers", "samples", "step_time_s"))
    outcome = row["outcome"] if row["outcome"] != "not run" else f"not run: {row['reason']}"
    peak = f"{int(row['peak_bytes']) / GIB:,.2f} GB" if row.get("peak_bytes") else ""
    exact = row.get("exact", "")
    return f"| {row['network']} | {row['method']} | {layers} | {samples} | {outcome} | {exact} | {peak} | {time_s} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
