"""One network: peers by themselves, each in a process of its own, then every method in turns.

First each peer, in a process of its own: made ready, its results next to eager's, its peak and its copies. Then, in
another process, each strategy without a budget and within the peers' peaks, likewise, and rounds in which a few take
turns with the best so far of their kind of kernels; then rounds of the strategies that no other one of their kind
clearly dominates, and rounds of those of them that none dominates, eager and the peers.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from itertools import islice
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch

from benchmarks.compare.judged import first_time_over_eager, not_dominated
from benchmarks.compare.measured import InitialState, Results, all_numbers, times_in_turns_s
from benchmarks.compare.networks import NETWORKS
from benchmarks.compare.peers import INFERENCE_PEERS, TRAINING_PEERS
from benchmarks.compare.peers.peer import Peer
from benchmarks.compare.planned import Planned, planned_steps
from benchmarks.compare.row import EAGER, INFERENCE, LEFT_OUT, NOT_RUN, OK, PEER, PYTORCH, TRAINING, Row
from benchmarks.compare.step import Step, plain_step
from membench.backends.real import real_device
from membench.core.errors import MembenchError, one_line
from membench.core.step.kernels import Kernels
from membench.core.step.workload import Workload

PEERS: Mapping[str, Mapping[str, Peer]] = {TRAINING: TRAINING_PEERS, INFERENCE: INFERENCE_PEERS}
AT_ONCE = 12
"""Number of strategies planned before all but the best so far are closed; more would hold too much host memory."""
SAME_PEAK = 0.01
"""Peaks of peers that differ by less are one budget, the lower."""
FIRST_ROUNDS, FIRST_MARGIN = 3, 0.03
"""The first rounds, in which eager, some strategies and the best so far of their kind of kernels take turns.

The margin is how much faster another one that holds no more must be for one to be left out there: between two runs of
the same step medians of three differ by as much.
"""
LEAST_ROUNDS, MOST_ROUNDS = 9, 99
TURNS_S = 200.0
"""About how long the rounds of eager and the best of all kinds take, and the judged rounds after those.

Where that is fewer than `LEAST_ROUNDS`, these run: the time of a step of 0.1 s varies by a tenth, and medians of 15
leave a ratio open to 4 %.
"""


def is_due(rows: Sequence[Row], network: str, mode: str, peers: Sequence[str]) -> bool:
    """Return whether a network has no rows, or none of a peer, which was left out, not timed, or came later."""
    own = [row for row in rows if (row.network, row.mode) == (network, mode)]
    done = {
        row.method for row in own if row.reason != LEFT_OUT and (row.outcome == NOT_RUN or row.step_time_s is not None)
    }
    return not own or not set(peers) <= done


def rows_of(
    network: str, mode: str, peers: Sequence[str], names: Sequence[str], backend: str, limit_s: float
) -> list[Row]:
    """Return the rows of a network.

    Args:
        peers: those that are run.
        names: names of the strategies that are run.
        limit_s: time limit of a peer's process.
    """
    alone = []
    for name in PEERS[mode]:
        absent = Row(network, mode, PEER, name, NOT_RUN, reason=LEFT_OUT)
        if name in peers:
            absent = replace(absent, reason=f"its process ended, or took more than {limit_s:.0f} s")
            alone.append(in_a_process(peer_alone, (network, mode, name, backend), limit_s) or absent)
        else:
            alone.append(absent)
    together = in_a_process(all_together, (network, mode, alone, names, backend), None)
    if together is None:
        raise MembenchError(f"{network}, {mode}: the process that runs all methods ended; run it again")
    return together


def in_a_process(function: Callable[..., Any], arguments: Sequence[Any], limit_s: float | None) -> Any:
    """Return what a function returns in a process of its own; None if that process ended or took too long."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        try:
            return pool.submit(function, *arguments).result(limit_s)
        except TimeoutError:
            for process in (pool._processes or {}).values():
                process.kill()
        except BrokenProcessPool:
            pass
    return None


def peer_alone(network: str, mode: str, name: str, backend: str) -> Row:
    """Return a peer's row without its time."""
    row = Row(network, mode, PEER, name, NOT_RUN)
    device, workload = real_device(backend), workload_of(network, mode, backend)
    eager = eager_step(workload)
    initial = InitialState(workload.module)
    expected = initial.results(eager)
    start_s = time.process_time()
    try:
        step = PEERS[mode][name].step(workload, NETWORKS[network].blocks)
        step.run()  # compiles
    except MembenchError as error:
        return replace(row, reason=one_line(error))
    except Exception as error:  # what another tool raises is its result
        return replace(row, reason=f"it raises {type(error).__name__}: {one_line(error)[:300]}")
    ready_s = time.process_time() - start_s
    return replace(row, outcome=OK, ready_time_s=ready_s, **all_numbers(step, initial, expected, device))


def all_together(network: str, mode: str, alone: Sequence[Row], names: Sequence[str], backend: str) -> list[Row]:
    """Return the rows of all methods, with the times that they have next to each other."""
    device, workload = real_device(backend), workload_of(network, mode, backend)
    eager = eager_step(workload)
    initial = InitialState(workload.module)
    expected = initial.results(eager)
    rounding = initial.rounding(eager, expected)
    alone = [replace(row, rounding=rounding) if row.outcome == OK else row for row in alone]
    numbers = all_numbers(eager, initial, expected, device)
    first = Row(network, mode, PYTORCH, EAGER, OK, rounding=rounding, **numbers)
    timed: list[tuple[Row, Step]] = [(first, eager)]
    rest: list[Row] = []
    for kernels in Kernels:
        if kernels is not Kernels.EAGER and device.type != "cpu":
            continue
        planned = planned_steps(network, workload, device, budgets(first, alone), kernels, names)
        best: list[tuple[Row, Step]] = []
        while any(found := measured(islice(planned, AT_ONCE), initial, expected, rounding, device)):
            best, others = chosen(timed[0], best + found[0], device, FIRST_ROUNDS, FIRST_MARGIN)
            rest += found[1] + others
        timed += best
    best, others = chosen(timed[0], timed[1:], device, _rounds([step for _, step in timed], device))
    timed, rest = [timed[0], *best], rest + others
    for row in alone:
        if row.outcome == OK:
            step = PEERS[mode][row.method].step(workload, NETWORKS[network].blocks)
            step.run()
            step.clear()
            timed.append((row, step))
        else:
            rest.append(row)
    rows = timed_rows(timed, device) + rest
    for _, step in timed:
        step.close()
    by_label = {row.label: row for row in rows}
    return [_as_measured(row, by_label[row.same_as]) if row.same_as else row for row in rows]


def measured(
    planned: Iterable[Planned], initial: InitialState, expected: Results, rounding: float, device: torch.device
) -> tuple[list[tuple[Row, Step]], list[Row]]:
    """Return the steps, with all numbers but their times, and the rows that have none."""
    found: list[tuple[Row, Step]] = []
    rest: list[Row] = []
    for each in planned:
        if each.step is None:
            rest.append(each.row)
        else:
            numbers = all_numbers(each.step, initial, expected, device)
            found.append((replace(each.row, rounding=rounding, **numbers), each.step))
            print(f"  {each.row.label}: planned in {each.row.ready_time_s:.1f} s", flush=True)
    return found, rest


def chosen(
    eager: tuple[Row, Step], found: Sequence[tuple[Row, Step]], device: torch.device, rounds: int, margin: float = 0.0
) -> tuple[list[tuple[Row, Step]], list[Row]]:
    """Return the strategies that none of their kind dominates in rounds with all and eager, and the others' rows.

    The others' steps are closed: they would hold host memory in the rounds that follow.

    Args:
        margin: by how much another one must be faster, as a share.
    """
    times_s, _ = _medians_s([step for _, step in (eager, *found)], device, rounds)
    timed = [
        (replace(row, first_time_over_eager=time_s / times_s[0]), step)
        for (row, step), time_s in zip(found, times_s[1:], strict=True)
    ]
    best = [
        row
        for kernels in Kernels
        for row in not_dominated([row for row, _ in timed if row.kernels == kernels], first_time_over_eager, margin)
    ]
    for row, step in timed:
        if row not in best:
            step.close()
    return [pair for pair in timed if pair[0] in best], [row for row, _ in timed if row not in best]


def timed_rows(timed: Sequence[tuple[Row, Step]], device: torch.device) -> list[Row]:
    """Return the rows with times, of rounds in which all take turns.

    Strategies were chosen by other times than those that they are compared by: the fastest of many would otherwise owe
    a part of its lead to chance.
    """
    steps = [step for _, step in timed]
    rounds = _rounds(steps, device)
    judged_s, elapsed_s = _medians_s(steps, device, rounds)
    return [
        replace(row, step_time_s=time_s, eager_time_s=judged_s[0], elapsed_time_s=whole_s, rounds=rounds)
        for (row, _), time_s, whole_s in zip(timed, judged_s, elapsed_s, strict=True)
    ]


def _rounds(steps: Sequence[Step], device: torch.device) -> int:
    return min(MOST_ROUNDS, max(LEAST_ROUNDS, round(TURNS_S / sum(_medians_s(steps, device, 1)[1]))))


def _medians_s(steps: Sequence[Step], device: torch.device, rounds: int) -> tuple[list[float], list[float]]:
    """Return the medians of the seconds that are judged, and of those that passed."""
    taken_s = times_in_turns_s(steps, device, rounds)
    elapsed_s, of_threads_s = ([median(each[kind] for each in times) for times in taken_s] for kind in (0, 1))
    return (elapsed_s if device.type == "cuda" else of_threads_s), elapsed_s


def _as_measured(row: Row, other: Row) -> Row:
    """Return a row with the numbers of another one that has the same schedule."""
    return replace(
        other, method=row.method, kernels=row.kernels, budget_bytes=row.budget_bytes,
        ready_time_s=row.ready_time_s, same_as=row.same_as
    )  # fmt: skip


def budgets(eager: Row, alone: Sequence[Row]) -> list[int]:
    """Return the peaks of peers with eager's results below its peak, largest first; of about equal ones the least."""
    assert eager.peak_bytes is not None
    found: list[int] = []
    for peak_bytes in sorted(row.peak_bytes for row in alone if row.peak_bytes and row.has_eagers_results):
        if peak_bytes < eager.peak_bytes and (not found or peak_bytes > found[-1] * (1 + SAME_PEAK)):
            found.append(peak_bytes)
    return found[::-1]


def workload_of(network: str, mode: str, backend: str) -> Workload:
    described = NETWORKS[network]
    workload = described.training() if mode == TRAINING else described.inference()
    return workload.to(real_device(backend))


def eager_step(workload: Workload) -> Step:
    """Return plain PyTorch's step."""
    if workload.trains:
        return plain_step(workload)

    def run() -> Any:
        with torch.no_grad():
            return workload.output()

    return plain_step(workload, run)
