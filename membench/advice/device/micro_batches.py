"""Plain PyTorch with gradient accumulation: the batch in as few equal parts as fit."""

from collections.abc import Iterator
from functools import partial
from math import ceil

from membench.advice.device.advice import AdvisedPlan
from membench.advice.device.planning import Target, plan_method
from membench.advice.device.processes import Planners
from membench.advice.pool.workers import TooSlow
from membench.core.errors import InfeasibleSchedule, OutOfMemory, UnsupportedModel
from membench.strategies.pytorch import PyTorch


def accumulated(planners: Planners, batch_size: int, target: Target, needed_bytes: int) -> AdvisedPlan | None:
    """Return plain PyTorch's plan in micro-batches; None: it does not fit either, or the batch cannot be divided.

    Args:
        needed_bytes: by the whole batch, which does not fit.
    """
    for size in _sizes(batch_size, max(2, needed_bytes // max(1, target.room_bytes))):
        job = partial(plan_method, batch_size=batch_size, strategy=PyTorch(), target=target, micro_batch=size)
        try:
            return planners.run(job, batch_size)
        except (InfeasibleSchedule, OutOfMemory):
            continue
        except (UnsupportedModel, TooSlow):
            break
    return None


def _sizes(batch_size: int, parts: int) -> Iterator[int]:
    """Yield the samples of each part, for a number of parts, for one more, and for twice as many again and again."""
    size = batch_size
    for count in (parts, *((parts + 1) << doublings for doublings in range(batch_size.bit_length()))):
        smaller = ceil(batch_size / count)
        if smaller < size:
            yield smaller
        size = smaller
