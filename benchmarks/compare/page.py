"""The page of the comparison."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.compare.judged import Duel, counts, duels, not_dominated, step_time_s
from benchmarks.compare.networks import NETWORKS
from benchmarks.compare.peers import INFERENCE_PEERS, TRAINING_PEERS
from benchmarks.compare.row import (
    EAGER,
    INFERENCE,
    LARGEST_ERROR,
    LEFT_OUT,
    MEMBENCH,
    NOT_RUN,
    OK,
    PEER,
    ROUNDINGS,
    TRAINING,
    Row,
)
from membench.core.step.kernels import Kernels
from membench.core.units import MIB

INTRODUCTION = f"""# Today's tools and membench's strategies, in one table

Made by `make compare` or `make compare-compile`; every row is in `rows.jsonl`, the machine and its load in
`provenance.jsonl`.

- *Peak* is what the device's allocator hands out at most, with weights, batch and gradients, in a step after the first.
  On the CPU the allocator's events are summed, for peers and strategies alike; host memory is numpy's, which they do
  not contain. Where a tool would copy nothing on the CPU (`save_on_cpu`, weights that accelerate reads), its own code
  runs with host memory apart: `tensor.cpu()` copies there and `.to(device)` back, on the computing thread.
- *Time over eager* is the median step in eager PyTorch's, of rounds in one process, each in an order of its own.
  Strategies took turns in three rounds, a few with the best so far of their kind of kernels. Those that no other one of
  their kind beat by 3 % in as little memory took turns in further ones, which choose a peer's rival. Eager, the peers
  and those that none dominated then took turns again, and the times are of those rounds: the fastest of many would
  otherwise owe a part of its lead to chance. Until 28 November 2026 (`provenance.jsonl`) nine rounds chose and at most
  15 were judged. Until 27 November the rounds ran forwards and backwards in turn, a strategy was left out if any other
  one was faster in the first three, and three more chose; of inference on some networks all had the same three. Freed
  memory stays with the process. One thread computes; strategies copy on another. On the CPU it is the seconds that all
  threads spent: other processes of the machine do not count, and a copy counts in full although it runs next to the
  computation, which a GPU would hide. The seconds that passed (`elapsed_time_s` in `rows.jsonl`) compare only where
  nothing else runs: on a busy machine a thread that sleeps while copies run gets its core back sooner, and strategies
  that copy would look up to four times as fast.
- *Copied* is bytes to the host and back in a step; *again* those of storages that had been copied unchanged before;
  *weights* those of weights.
- *Error* is the largest difference of a gradient (of the output, in inference) from eager's, in eager's largest one;
  *exact* is every bit of loss and gradients. *Rounding* is the error that eager has if each weight changes by one unit
  in its last place: untrained networks with batch norm amplify it. *Statistics* is how often a step updates batch
  norm's; *held* what is still allocated after the step.
- Peers were measured alone first, each in a process of its own. Strategies ran without a budget, and within the peaks
  of the peers below the peak that they have without one. A method without a gradient, or with an error above
  {LARGEST_ERROR:.0e}, is not compared; a peer, which may use other kernels than eager PyTorch, has errors of up to
  {ROUNDINGS} times rounding as well, and so has a strategy with *inductor*, the kernels of `kernels="inductor"`, on
  weights and batch with channels last.
"""


def page(rows: Sequence[Row], runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of all rows.

    Args:
        runs: provenance of each run.
    """
    left_out = {row.method for row in rows} - {row.method for row in rows if row.reason != LEFT_OUT}
    asked = [row for row in rows if row.method not in left_out]
    lines = [INTRODUCTION, *_machine(runs), "", *_against_peers(asked), "", *_not_run(asked, left_out)]
    lines += _defects(asked)
    for network in NETWORKS:
        for mode in (TRAINING, INFERENCE):
            if own := _of(asked, network, mode):
                lines += ["", *_section(network, mode, own)]
    return "\n".join(lines) + "\n"


def _not_run(rows: Sequence[Row], left_out: Collection[str]) -> Iterator[str]:
    if left_out:
        yield f"Left out of these runs: {'; '.join(sorted(left_out))}."
        yield ""
    missing = {
        network: [mode for mode in (TRAINING, INFERENCE) if not _of(rows, network, mode)] for network in NETWORKS
    }
    if any(missing.values()):
        named = (f"{network} ({', '.join(modes)})" for network, modes in missing.items() if modes)
        yield f"Not run: {', '.join(named)}."
        yield ""


def _of(rows: Sequence[Row], network: str, mode: str) -> list[Row]:
    return [row for row in rows if (row.network, row.mode) == (network, mode)]


def picture_name(network: str, mode: str) -> str:
    return f"{network}_{mode}.png"


def title(network: str, mode: str) -> str:
    described = NETWORKS[network]
    return f"{network}, {mode}, batch {described.batch_size}{described.described_size}"


def _machine(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if runs:
        last = runs[-1]
        versions = ", ".join(f"{name} {number}" for name, number in last["versions"].items())
        loads = [run["load"] for run in runs]
        yield (
            f"Device: {last['device']}, {last['threads']} computing thread. Load of the machine (processes that wanted "
            f"one of its {last['cores']} cores) {min(loads):.1f} to {max(loads):.1f}. {versions}."
        )


def _against_peers(rows: Sequence[Row]) -> Iterator[str]:
    yield "## The best strategy at equal or lower peak, against each peer"
    yield ""
    yield (
        "The peer's time in that of the strategy that was the fastest of those that hold no more in the first rounds; "
        "above 1 it is faster."
    )
    yield ""
    known = {row.method for row in rows if row.tool == PEER}
    names = [name for name in (*TRAINING_PEERS, *INFERENCE_PEERS) if name in known]
    done = [name for name in NETWORKS if any(row.network == name for row in rows)]
    compiled = {row.network for row in rows if row.kernels == Kernels.INDUCTOR}
    if compiled and (missing := [name for name in done if name not in compiled]):
        yield f"No strategy has run on compiled kernels on {', '.join(missing)}: these rows are older."
        yield ""
    yield f"| peer | {' | '.join(done)} | membench is faster on | median |"
    yield f"|---|{'---:|' * (len(done) + 2)}"
    for name in names:
        own = [row for row in rows if row.method == name]
        if any(row.outcome == OK for row in own):
            all_duels = (duel for network in done for duel in duels(_of(rows, network, own[0].mode)))
            found = {duel.peer.network: duel for duel in all_duels if duel.peer.method == name}
            ratios = [duel.ratio for duel in found.values() if duel.ratio is not None]
            won = sum(duel.is_won for duel in found.values())
            wrong = {row.network for row in own if row.outcome == OK and not row.has_eagers_results}
            cells = [_duel(found.get(network), network in wrong) for network in done]
            middle = f"{median(ratios):.2f}" if ratios else ""
            yield f"| {name} | {' | '.join(cells)} | {won} of {len(found)} | {middle} |"
        else:
            yield f"| {name} | {' | '.join('' for _ in done)} | not run: {own[0].reason} | |"


def _duel(duel: Duel | None, is_wrong: bool) -> str:
    if duel is None:
        return "wrong gradients" if is_wrong else NOT_RUN
    if duel.best is None or duel.ratio is None:
        return "no strategy holds as little"
    return f"{duel.ratio:.2f} {duel.best.name}"


def _defects(rows: Sequence[Row]) -> Iterator[str]:
    yield "## Defects"
    yield ""
    yield (
        "| method | networks | weights without a gradient | wrong gradients: error | statistics updated more than once "
        "| copied again | weights copied | held after a step |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for method in dict.fromkeys(row.method for row in rows if row.outcome == OK):
        own = [row for row in rows if row.method == method and row.outcome == OK]
        cells = [
            f"{len({row.network for row in own})}",
            _on([row for row in own if row.missing]),
            _on([row for row in own if row.is_wrong], "error"),
            _on([row for row in own if (row.statistics_updates or 0) > 1], "statistics_updates"),
            *(
                _most_mib([getattr(row, name) for row in own])
                for name in ("repeated_bytes", "weight_bytes", "held_bytes")
            ),
        ]
        if any(cells[1:]):
            yield f"| {method} | {' | '.join(cells)} |"
    if any(row.method == "modnn" for row in rows):
        yield ""
        yield (
            "modnn computes micro-batches, whose batch norms take statistics of their own; "
            "the others compute the whole batch."
        )


def _on(rows: Sequence[Row], name: str = "missing") -> str:
    """Return on how many networks rows have a defect, and its largest figure."""
    if not rows:
        return ""
    return f"on {len({row.network for row in rows})}, at most {max(getattr(row, name) for row in rows):.3g}"


def _most_mib(sizes: Sequence[int | None]) -> str:
    largest = max((size or 0 for size in sizes), default=0)
    return f"{largest / MIB:.1f} MB" if largest > 0.05 * MIB else ""


def _section(network: str, mode: str, rows: Sequence[Row]) -> Iterator[str]:
    yield f"## {title(network, mode)}"
    yield ""
    rounds = next(row.rounds for row in rows if row.rounds)
    rounding = next((row.rounding for row in rows if row.rounding is not None), 0.0)
    yield f"![peak memory and step time]({picture_name(network, mode)})"
    yield ""
    yield (
        f"Medians of {rounds} rounds; rounding: {rounding:.1e}. Of the strategies those that are not dominated by "
        "another one, fastest first. The picture leaves out what holds more than eager PyTorch."
    )
    yield ""
    yield "| method | peak, MB | time over eager | copied, MB | again | weights | error | exact | statistics | held |"
    yield "|---|---:|---:|---:|---:|---:|---:|---|---:|---:|"
    yield from map(_line, (row for row in rows if row.method == EAGER or row.tool == PEER))
    for kernels in Kernels:
        own = [row for row in rows if row.tool == MEMBENCH and row.kernels == kernels and counts(row)]
        yield from map(_line, not_dominated(own, step_time_s))
    refused = dict.fromkeys(row.method for row in rows if row.tool == MEMBENCH and row.outcome == NOT_RUN)
    never = [name for name in refused if not any(row.method == name and row.outcome == OK for row in rows)]
    points = sum(row.tool == MEMBENCH and row.outcome == OK for row in rows)
    yield ""
    yield f"Points of strategies: {points}." + (f" Not run at all: {', '.join(never)}." if never else "")


def _line(row: Row) -> str:
    if row.outcome == NOT_RUN:
        return f"| {row.label} | not run: {row.reason} | | | | | | | | |"
    cells = [
        row.label if row.tool != MEMBENCH else f"membench {row.name}",
        _mib(row.peak_bytes),
        f"{row.time_over_eager:.2f}" if row.time_over_eager else f"not run: {row.reason}",
        _mib((row.to_host_bytes or 0) + (row.to_device_bytes or 0)),
        _mib(row.repeated_bytes),
        _mib(row.weight_bytes),
        f"{row.error:.1e}" if row.error else "0",
        ("yes" if row.is_exact else "no") + (f", {row.missing} without a gradient" if row.missing else ""),
        "" if row.statistics_updates is None else f"{row.statistics_updates}",
        _mib(row.held_bytes),
    ]
    return f"| {' | '.join(cells)} |"


def _mib(size_bytes: int | None) -> str:
    return f"{(size_bytes or 0) / MIB:,.1f}"
