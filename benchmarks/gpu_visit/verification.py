"""Part f: the second verification of a prediction: run with the predicted memory as the limit, and with less.

Plain PyTorch has the predicted reserved memory as its share of the card; what runs there, and not with 5 % less, was
predicted closely. A method has the predicted peak of its schedule.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial

import torch

from benchmarks.gpu_steps.run import WARM_STEPS, program
from benchmarks.gpu_visit.league import DEVICES, league_steps, name_of, read_predicted
from benchmarks.gpu_visit.methods import NETWORKS, SMALL_NETWORKS, Network
from benchmarks.gpu_visit.rows import NotRun, Rows, Values, Visit
from membench.backends import accelerator_memory
from membench.core.errors import OutOfMemory
from membench.execution.measurement import synchronize
from membench.lab.validation.rows import Row
from membench.steps.compile import build_step
from membench.steps.request import StepRequest
from membench.strategies.base import find_strategy

STEPS = 4
"""Of the league, the first ones."""
SHARES = (1.0, 0.95)
"""Of the predicted reserved memory, as the limit."""
JOINT_NETWORKS = NETWORKS[:2]
JOINT_SHARE = 0.7
"""Of eager's peak, as joint's budget."""
PROCESSES = 4


def run(visit: Visit, rows: Rows) -> None:
    """Measure each limit in a process of its own, several at a time.

    The cap is one of a process, and no time is measured.
    """
    limits = [(step, share) for step in league_steps()[:STEPS] for share in SHARES]
    context = multiprocessing.get_context("spawn")
    if visit.backend != "cuda":
        for step, share in limits:
            rows.measure(_name(step, share), _no_cap)
    else:
        with ProcessPoolExecutor(PROCESSES, context, max_tasks_per_child=1) as pool:
            for future in [pool.submit(measure_limit, visit, *limit) for limit in limits]:
                future.result()
    for name, batch_size in SMALL_NETWORKS if visit.is_small else JOINT_NETWORKS:
        network = Network(name, batch_size, visit, nullcontext())
        rows.measure(f"joint {JOINT_SHARE} {name} within its predicted peak", partial(within_peak, network))


def _name(step: Row, share: float) -> str:
    return f"pytorch {name_of(step)} within {share} of the predicted memory"


def _no_cap() -> Values:
    raise NotRun("the allocator of this device has no cap")


def measure_limit(visit: Visit, step: Row, share: float) -> None:
    """Measure a row in this process, whose allocator has the limit from now on."""
    visit.rows("f").measure(_name(step, share), partial(_within_share, visit.device, step, share))


def _within_share(device: torch.device, step: Row, share: float) -> Values:
    is_h200 = "H200" in torch.cuda.get_device_name(device)
    predicted_bytes = read_predicted()[name_of(step)][DEVICES[0] if is_h200 else DEVICES[1]]["reserved_bytes"]
    total_bytes = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(share * predicted_bytes / total_bytes, device)
    fits = True
    try:
        run = program(step, device)
        for _ in range(WARM_STEPS):
            run()
        synchronize(device)
    except torch.OutOfMemoryError:
        fits = False
    readings = accelerator_memory.read_memory(device)
    return {
        "fits": fits,
        "limit_bytes": int(share * predicted_bytes),
        "reserved_bytes": readings.reserved_bytes,
        "allocation_retries": readings.allocation_retries,
    }  # fmt: skip


def within_peak(network: Network) -> Values:
    """Run joint's step with its predicted peak as the limit of the card.

    Where there is no cap, compare the peaks alone.
    """
    device = network.visit.device
    options = StepRequest(find_strategy("joint")(), int(JOINT_SHARE * network.eager_bytes))
    step = build_step(network.captures, network.cost, options)
    has_cap = device.type == "cuda"
    if has_cap:
        accelerator_memory.cap_memory(step.predicted_peak_bytes, device)
    try:
        peak_bytes: int | None = step.measure().peak_bytes
    except OutOfMemory:
        peak_bytes = None
    finally:
        if has_cap:
            torch.cuda.set_per_process_memory_fraction(1.0, device)
    step.close()
    limit_bytes = step.predicted_peak_bytes
    fits = peak_bytes is not None and (has_cap or peak_bytes <= limit_bytes)
    return {"fits": fits, "limit_bytes": limit_bytes, "peak_bytes": peak_bytes, "has_cap": has_cap}
