"""Seconds of the host for a call, by its kind; the device has less to do than the host, so that it never waits."""

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from benchmarks.gpu_visit.rows import NotRun, Rows, Values, Visit
from membench.execution.measurement import synchronize
from membench.profiling.issue import measure_issue

ELEMENTS = 128
CALLS = 200
"""Between two waits for the device: fewer than it queues."""
REPETITIONS = 7
CHAIN = 20
"""Operators in a compiled function, and in a CUDA graph."""


def run(visit: Visit, rows: Rows) -> None:
    device = visit.device
    for name, call in calls(device).items():
        rows.measure(f"host call: {name}", partial(_call_time, call, device))
    rows.measure("host call: backward of a node", partial(_backward_time, device, _relus))
    rows.measure("host call: backward of a checkpoint", partial(_backward_time, device, _checkpoints))
    rows.measure("host call: compiled", partial(_compiled_time, device))
    rows.measure("host call: replay of a CUDA graph", partial(_replay_time, device))
    rows.measure("host call: task and copy of a schedule", partial(_issue_time, device))


def calls(device: torch.device) -> dict[str, Callable[[], object]]:
    """Return calls by kind."""
    plain, trained = (torch.ones(ELEMENTS, device=device), torch.ones(ELEMENTS, device=device, requires_grad=True))
    layer = torch.nn.Linear(8, 8, device=device)
    row = torch.ones(1, 8, device=device)
    return {
        "operator": lambda: torch.relu(plain),
        "operator by its overload": lambda: torch.ops.aten.relu.default(plain),
        "view": lambda: plain.view(2, -1),
        "operator with a node of autograd": lambda: torch.relu(trained),
        "layer": lambda: layer(row),
        "operator under autocast": partial(_autocast, device.type, layer, row),
        "checkpoint": lambda: checkpoint(torch.relu, trained, use_reentrant=False),
    }  # fmt: skip


def issued_in_s(call: Callable[[], object], device: torch.device, count: int = CALLS) -> float:
    """Return the host's seconds for one of many calls.

    The median of several times, of which the first does not count.
    """
    times_s = []
    for _ in range(REPETITIONS + 1):
        synchronize(device)
        start_s = time.perf_counter()
        for _ in range(count):
            call()
        times_s.append((time.perf_counter() - start_s) / count)
    synchronize(device)
    return statistics.median(times_s[1:])


def _call_time(call: Callable[[], object], device: torch.device) -> Values:
    return {"time_s": issued_in_s(call, device)}


def _autocast(device_type: str, layer: torch.nn.Module, row: Tensor) -> None:
    if device_type not in ("cpu", "cuda"):
        raise NotRun("autocast has no kernels on other devices")
    with torch.autocast(device_type, torch.bfloat16):
        layer(row)


def _relus(source: Tensor) -> Tensor:
    for _ in range(CALLS):
        source = torch.relu(source)
    return source


def _checkpoints(source: Tensor) -> Tensor:
    for _ in range(CALLS):
        source = checkpoint(torch.relu, source, use_reentrant=False)
    return source


def _backward_time(device: torch.device, forward: Callable[[Tensor], Tensor]) -> Values:
    """Return the seconds of ``backward()`` for one of a chain of calls; it returns before the device has ended."""
    source, ones = (torch.ones(ELEMENTS, device=device, requires_grad=True), torch.ones(ELEMENTS, device=device))
    times_s = []
    for _ in range(REPETITIONS + 1):
        result = forward(source)
        synchronize(device)
        start_s = time.perf_counter()
        result.backward(ones)
        times_s.append((time.perf_counter() - start_s) / CALLS)
    synchronize(device)
    return {"time_s": statistics.median(times_s[1:])}  # fmt: skip


def _chain(source: Tensor) -> Tensor:
    for _ in range(CHAIN):
        source = torch.sin(source)
    return source


def _compiled_time(device: torch.device) -> Values:
    if device.type != "cuda":
        raise NotRun("compiled for GPUs alone: the CPU's compiler takes half a minute")
    source = torch.ones(ELEMENTS, device=device)
    trained = torch.ones(ELEMENTS, device=device, requires_grad=True)
    function = torch.compile(_chain)
    return {
        "time_s": issued_in_s(lambda: function(source), device),
        "with_node_s": issued_in_s(lambda: function(trained), device),
        "operators": CHAIN,
    }


def _replay_time(device: torch.device) -> Values:
    if device.type != "cuda":
        raise NotRun("CUDA graphs are those of CUDA")
    source, graph = torch.ones(ELEMENTS, device=device), torch.cuda.CUDAGraph()
    _chain(source)
    with torch.cuda.graph(graph):
        _chain(source)
    return {"time_s": issued_in_s(graph.replay, device), "operators": CHAIN}


def _issue_time(device: torch.device) -> Values:
    return vars(measure_issue(device))
