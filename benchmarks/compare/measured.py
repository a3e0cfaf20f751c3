"""What a method's step holds, copies and computes, next to eager PyTorch's."""

import copy
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.compare.step import Step
from membench.core.libraries.torch_internals import tree_leaves
from membench.execution.measurement import peaks_bytes, synchronize

SEED = 0
_COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class Results:
    """What a step computed, on the host, in the order of the module's tensors.

    Attributes:
        gradients: each weight's gradient in a step of training; None: the weight got none.
        buffers: buffers after a step of training.
    """

    gradients: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    buffers: tuple[Tensor, ...]


class InitialState:
    """The state from which each method's first step starts: buffers of a module, and the random generator."""

    def __init__(self, module: nn.Module) -> None:
        self._buffers = [buffer.clone() for buffer in module.buffers()]

    def results(self, step: Step) -> Results:
        """Run a step from this state and return what it computed."""
        with torch.no_grad():
            for buffer, initial in zip(step.module.buffers(), self._buffers, strict=True):
                buffer.copy_(initial)
        step.clear()
        torch.manual_seed(SEED)
        output = step.run()
        outputs = [each for each in tree_leaves(output) if isinstance(each, Tensor)]
        found = Results(
            gradients=tuple(_on_host(weight.grad) for weight in step.module.parameters()) if step.trains else (),
            outputs=tuple(copy.deepcopy(each.detach().cpu()) for each in outputs),
            buffers=tuple(each.detach().cpu().clone() for each in step.module.buffers()) if step.trains else (),
        )
        step.clear()
        return found

    def rounding(self, eager: Step, expected: Results) -> float:
        """Return eager's error if each weight changes by one unit in its last place, up or down."""
        weights = list(eager.module.parameters())
        before = [weight.detach().clone() for weight in weights]
        generator = torch.Generator().manual_seed(SEED)
        with torch.no_grad():
            for weight in weights:
                signs = torch.randint(2, weight.shape, generator=generator).mul_(2).sub_(1).to(weight.device)
                weight.mul_(1 + signs * torch.finfo(weight.dtype).eps)
        found = self.results(eager)
        with torch.no_grad():
            for weight, values in zip(weights, before, strict=True):
                weight.copy_(values)
        return float(difference(found, expected)["error"])

    def statistics_updates(self, module: nn.Module, results: Results) -> int | None:
        """Return by how much the counters of batch norms rose in a step of training that started here."""
        if not results.buffers:
            return None
        names = [name for name, _ in module.named_buffers()]
        rises = [
            int(after - before)
            for name, before, after in zip(names, self._buffers, results.buffers, strict=True)
            if name.endswith(_COUNTER)
        ]
        return max(rises, default=None)


def difference(found: Results, expected: Results) -> dict[str, Any]:
    """Return the fields of a `Row` that compare a step's results with eager's."""
    pairs = [
        *((a, b) for a, b in zip(found.gradients, expected.gradients, strict=True) if b is not None),
        *zip(found.outputs, expected.outputs, strict=True),
    ]
    present = [(a, b) for a, b in pairs if a is not None]
    scale = max((float(b.abs().max()) for _, b in pairs if b.numel()), default=0.0)
    largest = max((float((a - b).abs().max()) for a, b in present if b.numel()), default=0.0)
    return {
        "error": largest / scale if scale else largest,
        "is_exact": len(present) == len(pairs) and all(torch.equal(a, b) for a, b in present),
        "missing": len(pairs) - len(present),
        "has_exact_buffers": all(map(torch.equal, found.buffers, expected.buffers)) if found.buffers else None,
    }


def memory(step: Step, device: torch.device) -> dict[str, Any]:
    """Return the fields of a `Row` about memory and copies; the step must have run before."""

    def run() -> None:
        step.run()
        step.clear()

    step.clear()
    peak_bytes, held_bytes = peaks_bytes([run, lambda: None], device, step.backends)
    copies = step.count()
    step.clear()
    return {"peak_bytes": step.callers_bytes + peak_bytes, "held_bytes": held_bytes, **asdict(copies)}


def all_numbers(step: Step, initial: InitialState, expected: Results, device: torch.device) -> dict[str, Any]:
    """Return the fields of a `Row` that one method's step has by itself; its time is that of a run next to others."""
    found = initial.results(step)
    return {
        **difference(found, expected),
        "statistics_updates": initial.statistics_updates(step.module, found),
        **memory(step, device),
    }


def times_in_turns_s(steps: Sequence[Step], device: torch.device, rounds: int) -> list[list[tuple[float, float]]]:
    """Return each step's seconds, elapsed and on all threads, in each of the rounds in which all take their turn.

    Each round has an order of its own: what a step leaves in caches and in the heap would favour or delay the same
    neighbours.
    """
    times_s: list[list[tuple[float, float]]] = [[] for _ in steps]
    orders = Random(SEED)
    for _ in range(rounds):
        for step, taken_s in orders.sample(list(zip(steps, times_s, strict=True)), len(steps)):
            synchronize(device)
            start_s, threads_start_s = time.perf_counter(), time.process_time()
            step.run()
            synchronize(device)
            taken_s.append((time.perf_counter() - start_s, time.process_time() - threads_start_s))
            step.clear()
    return times_s


def _on_host(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.detach().cpu().clone()
