"""A long training under three strategies on the CPU: memory, threads and descriptors of the process at four steps.

Each strategy in a process of its own. RSS is the resident memory, tensors the bytes of all storages that a Python
object holds, objects those that Python's garbage collector tracks. Growth per 100 steps is that from step 100 on, when
everything has been allocated once; RSS also moves with the C library's allocator, so only growth that goes on is a
leak.
"""

import gc
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

import membench
from membench.core.units import MIB
from membench.sweep.cells.model import Model

STRATEGIES = ("eager", "layrub_intra", "vdnn_all")
READ_AT = (10, 100, 500, 1000)
MODEL = "digits_cnn"
BATCH_SIZE = 64


def reading() -> dict[str, float]:
    """Return what this process holds, by name."""
    gc.collect()
    objects = gc.get_objects()
    # by type: an isinstance check would ask lazy modules for their class
    tensors = [each for each in objects if issubclass(type(each), torch.Tensor)]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "RSS MiB": resident_pages * os.sysconf("SC_PAGE_SIZE") / MIB,
        "tensor bytes": sum(storages.values()),
        "objects": len(objects),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
    }


def line(name: str, values: Mapping[str, float]) -> str:
    return f"  {name:<22}" + "".join(f"{value:>14,.6g}" for value in values.values())


def train(strategy: str) -> float:
    """Print what a process holds over a training; return the resident memory at its end over that after 100 steps."""
    torch.manual_seed(0)
    workload = Model.named(MODEL).workload(BATCH_SIZE, seed=0, device="cpu")
    module, images, targets = workload.module, workload.inputs[0], workload.targets[0]
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
    step = membench.compile(module, workload.loss, (images, targets), strategy=strategy)
    readings = {}
    for count in range(1, max(READ_AT) + 1):
        step(torch.randn_like(images), targets)
        optimizer.step()
        optimizer.zero_grad()
        if count in READ_AT:
            readings[count] = reading()
    first, last = readings[READ_AT[1]], readings[READ_AT[-1]]
    hundreds = (READ_AT[-1] - READ_AT[1]) / 100
    print(f"{strategy:<24}" + "".join(f"{name:>14}" for name in last))
    for count, values in readings.items():
        print(line(f"step {count}", values))
    print(line("growth per 100 steps", {name: (last[name] - first[name]) / hundreds for name in last}))
    return last["RSS MiB"] / first["RSS MiB"]


def ratios() -> dict[str, float]:
    """Return the resident memory after the last step over that after 100, by strategy, each in a process of its own."""
    print(
        f"{READ_AT[-1]} steps of {MODEL} at batch {BATCH_SIZE}, {torch.get_num_threads()} threads of torch", flush=True
    )
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        grown = pool.map(train, STRATEGIES)
        return {
            f"{name}: memory after {READ_AT[-1]} steps over that after {READ_AT[1]}": value
            for name, value in zip(STRATEGIES, grown, strict=True)
        }


if __name__ == "__main__":
    ratios()
