"""What `bound` chooses from: gaps between two uses of a block, savings, and the same in its moments."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from membench.core.graph.task_graph import EXTERNAL_ROLES, RESULT_ROLES, Block
from membench.planning.choices.problem import Problem
from membench.strategies.joint.windows import Gathers, gathers

ANYWHERE = -1
"""In place of a task or a segment: at any time of the step."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The time between two uses of a block.

    Attributes:
        last: position of the use before; `first`: of the use after. Before the first use of a block whose home is in
            host memory `last` is -1, and the gap is also that behind its last use.
        written: position after which the copy to the host may start; None: it is on the host, or another gap pays for
            it.
        end: position of the last use, where `last` is -1.
        leaves: whether the block has to leave in it, for a task of the host or because one has written it.
        remake_s: seconds to compute the block again; None: impossible. `gathers`: the collectives that are needed for
            it.
        unit: recomputed together with others of this number.
    """

    block: int
    size_bytes: int
    last: int
    first: int
    written: int | None
    remake_s: float | None
    unit: int
    end: int = -1
    leaves: bool = False
    gathers: Gathers = ()

    @property
    def is_sent(self) -> bool:
        """Whether it does not return: a task of the host uses it."""
        return self.leaves and self.last >= 0


@dataclass(frozen=True, slots=True)
class Saving:
    """Bytes that are not held in exchange for seconds of computing.

    Attributes:
        group: at most one of a group is taken. Of a block in a gap: the block and its first use after; then it is
            neither copied nor recomputed in that gap.
        frees: bytes, and the tasks from which and before which they are not held.
        cost_s: seconds in addition to those of the tasks.
        task: in whose segment of the step they are spent; `ANYWHERE`: at any time.
    """

    group: tuple[int, int]
    frees: tuple[tuple[int, int, int], ...]
    cost_s: float
    task: int = ANYWHERE


@dataclass(frozen=True, slots=True)
class Saved:
    """A saving in moments of the program."""

    frees: tuple[tuple[int, int, int], ...]
    cost_s: float
    segment: int


@dataclass(frozen=True, slots=True)
class Span:
    """A gap in moments of the program; spans that are equal have equal variables.

    Attributes:
        start: the first moment in the gap; `end`: the first one behind it.
        out: the moment before which its copy to the host may start at the earliest; None: as in `Gap`.
        in_use: the moments after `out` at which it is still used.
        again: the first moment behind the last use, where `Gap.end` has one; otherwise None.
        leaves: as in `Gap`.
        remakes: the segments in which the block may be recomputed, each with the moment up to which it is away then.
    """

    size_bytes: int
    start: int
    end: int
    out: int | None
    in_use: range
    again: int | None
    leaves: bool
    remakes: tuple[tuple[int, int], ...]
    remake_s: float | None
    savings: tuple[Saved, ...]
    gathers: Gathers = ()

    @property
    def is_sent(self) -> bool:
        """As in `Gap`."""
        return self.leaves and self.again is None


def find_gaps(problem: Problem, least_bytes: int) -> Iterator[Gap]:
    """Yield the gaps of blocks of at least that size."""
    graph = problem.graph
    uses: dict[int, list[int]] = defaultdict(list)
    written: dict[int, int] = {}
    sent = {block for blocks in problem.sent.values() for block in blocks}
    for task in graph.tasks:
        for block in problem.touched[task.index]:
            uses[block].append(task.index)
        for block in () if task.on_host else task.writes:
            written[block] = task.index
    for described in graph.blocks:
        block, positions = described.index, uses[described.index]
        unit = problem.unit_of.get(block, -1)
        if described.host_location is not None:
            leaves = block in problem.visitors
            yield from _gaps_at_home(described, positions, written.get(block), unit, leaves=leaves)
            continue
        if described.role in EXTERNAL_ROLES | RESULT_ROLES or described.size_bytes < least_bytes:
            continue
        gaps = [(a, b) for a, b in pairwise(positions) if b > a + 1]
        if block in sent:
            end, size_bytes = len(graph.tasks), described.size_bytes
            yield Gap(block, size_bytes, positions[-1], end, written[block], None, unit, leaves=True)
        longest = max(gaps, key=lambda gap: gap[1] - gap[0], default=None)
        for last, first in gaps:
            can_repeat = unit >= 0 and problem.units[unit].makers and last >= written[block]
            start = max((p for p in positions if p <= last and block in graph.tasks[p].writes), default=last)
            yield Gap(
                block,
                described.size_bytes,
                last,
                first,
                start if (last, first) == longest else None,
                problem.units[unit].remake_s if can_repeat else None,
                unit,
                gathers=gathers(problem, unit) if can_repeat and problem.units[unit].gather_s else (),
            )


def _gaps_at_home(
    block: Block, positions: Sequence[int], written: int | None, unit: int, *, leaves: bool
) -> Iterator[Gap]:
    """Yield the gaps of a block with its home in host memory, which the copy to its home is a part of."""
    if not positions:
        return
    size_bytes = block.size_bytes
    yield Gap(block.index, size_bytes, -1, positions[0], written, None, unit, positions[-1], leaves)
    for last, first in pairwise(positions):
        if first > last + 1:
            yield Gap(block.index, block.size_bytes, last, first, None, None, unit)
