"""Optimal persistent checkpointing of a chain: the dynamic program of rotor, and the orders that follow from it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from membench.core.libraries.loops import compiled
from membench.planning.rewrites.recompute import Order
from membench.strategies.chain.stages import Chain, ChainReplay

STORE = 0
"""A decision: the first stage stores all that its backward pass reads, a larger one is the next checkpoint's."""

TABLE_ENTRIES = 20_000_000
LOOPS = 2_000_000_000
"""Bounds of a table's size and of the steps to fill it."""


@dataclass(frozen=True)
class Table:
    """Optimal seconds `seconds[first, last, slots]` of stages, forward and backward, and the first decision of each.

    The slots hold everything but the input of the first stage and what is held all the time.
    """

    chain: Chain
    slot_bytes: float
    seconds: Any
    decisions: Any

    def feasible_slots(self) -> list[int]:
        """Return the numbers of slots in which the whole chain can run, in ascending order."""
        return [int(m) for m in np.flatnonzero(np.isfinite(self.seconds[0, -1]))]

    def order(self, slots: int) -> Order:
        """Return the order of tasks of the whole chain in so many slots."""
        replay = ChainReplay(self.chain)
        self.replay(replay, 0, len(self.chain.stages) - 1, slots)
        return replay.finish()

    def replay(self, replay: ChainReplay, first: int, last: int, slots: int) -> None:
        """Run the stages forward and backward as the table has it."""
        decision = int(self.decisions[first, last, slots])
        stages = self.chain.stages
        if decision == STORE:
            replay.forward(first, stores=True, gives_output=first < last)
            if first < last:
                self.replay(replay, first + 1, last, slots - self.slots(stages[first].stored_bytes))
            replay.backward(first)
            return
        for number in range(first, decision):
            replay.forward(number, stores=False)
            if number > first:
                replay.drop_output(number - 1)
        self.replay(replay, decision, last, slots - self.slots(stages[decision - 1].output_bytes))
        replay.drop_output(decision - 1)
        results_bytes = sum(stage.result_bytes for stage in stages[decision : last + 1])
        self.replay(replay, first, decision - 1, slots - self.slots(results_bytes))

    def slots(self, size_bytes: int) -> int:
        """Return the slots that hold so many bytes."""
        return -int(-size_bytes // self.slot_bytes)


def fill(chain: Chain, top_bytes: int, slots: int) -> Table:
    """Return the table for memory up to `top_bytes`, in at most so many slots."""
    stages, count = chain.stages, len(chain.stages)
    slots = max(1, min(slots, top_bytes, TABLE_ENTRIES // count**2, 6 * LOOPS // count**3))
    table = Table(chain, top_bytes / slots, None, None)
    needs = np.array(
        [
            [table.slots(size_bytes) for size_bytes in (
                stage.output_bytes, stage.stored_bytes, stage.forward_bytes, stage.storing_bytes, stage.backward_bytes,
                stage.gradient_bytes, stage.again_bytes,
            )]
            for stage in stages
        ]
    )  # fmt: skip
    results = np.zeros((count, count), np.int64)
    for first in range(count):
        size_bytes = 0
        for last in range(first, count):
            size_bytes += stages[last].result_bytes
            results[first, last] = table.slots(size_bytes)
    forward_s = np.array([stage.forward_s for stage in stages])
    backward_s = np.array([stage.backward_s for stage in stages])
    again_s = np.array([stage.again_s for stage in stages])
    seconds, decisions = _fill(forward_s, backward_s, again_s, needs, results, slots)
    return Table(chain, table.slot_bytes, seconds, decisions)


@compiled
def _fill(forward_s: Any, backward_s: Any, again_s: Any, needs: Any, results: Any, slots: int) -> Any:
    """Fill the table, short chains first."""
    count = len(forward_s)
    seconds = np.full((count, count, slots + 1), np.inf)
    decisions = np.full((count, count, slots + 1), -1, np.int32)
    output, stored, running = needs[:, 0], needs[:, 1], needs[:, 2]
    storing, back, gradient, again = needs[:, 3], needs[:, 4], needs[:, 5], needs[:, 6]
    for length in range(count):
        for first in range(count - length):
            last = first + length
            after = results[first + 1, last] if length else 0
            is_again = first == last < count - 1  # and the output is not needed
            first_s = again_s[first] if is_again else forward_s[first]
            least = gradient[last] + (again[first] if is_again else storing[first])
            least = max(least, back[first] + after)
            for m in range(least, slots + 1):
                rest = m - stored[first]
                if length and rest < 0:
                    continue
                added_s = seconds[first + 1, last, rest] if length else 0.0
                if added_s < np.inf:
                    seconds[first, last, m] = first_s + backward_s[first] + added_s
                    decisions[first, last, m] = 0
            time_s, need = 0.0, 0
            for cut in range(first + 1, last + 1):
                time_s += forward_s[cut - 1]
                before = output[cut - 2] if cut - 1 > first else 0
                need = max(need, gradient[last] + before + running[cut - 1])
                start = max(need, output[cut - 1], results[cut, last])
                for m in range(start, slots + 1):
                    total_s = time_s + seconds[cut, last, m - output[cut - 1]]
                    total_s += seconds[first, cut - 1, m - results[cut, last]]
                    if total_s < seconds[first, last, m]:
                        seconds[first, last, m] = total_s
                        decisions[first, last, m] = cut
    return seconds, decisions
