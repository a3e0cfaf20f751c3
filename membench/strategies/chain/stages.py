"""A network cut into a chain of stages, with the bytes and seconds that planners of chains compute with.

The forward pass is cut wherever at most one block that can be made again is read later, and no earlier one is written
later. Blocks below a share of the largest one, and those that cannot be made again (masks of dropout, the loss), are
kept all the time and do not count for the cuts. Nor do blocks that skip over others (the skip connections of a U-Net,
the features of a DenseNet) within what would be a large stage: the longest is kept, until the stages are small or
nothing skips.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from membench.core.graph.task_graph import AFTER_THE_LOSS, RESULT_ROLES, Phase, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.choices.problem import Problem, large_bytes
from membench.planning.uses import saved_for_backward
from membench.strategies.chain.replay import Replay

LARGE_SHARE = 6
"""A stage is large if it stores more than the bytes that the backward pass reads, divided by this."""

LONGEST = 150
"""Number of stages above which neighbours are joined, so that tables stay small."""


Cut = tuple[int, int | None]
"""A position in the forward pass, and the block that is handed on there."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Consecutive tasks of the forward pass, and those of the backward pass that belong to them.

    Sizes leave out what is held all the time, the input of the stage and weight gradients of other stages.

    Attributes:
        units: what the stage makes and can make again.
        output: the block that the next stage reads; None: it reads only what is kept.
        stored: blocks of the units that the stage's own backward pass reads.
        output_bytes: size of `output`; `stored_bytes`: size of both.
        forward_bytes: peak of the forward pass that stores nothing; `storing_bytes`: peak of the one that stores.
        backward_bytes: peak of the backward pass, with what is stored.
        again_s: seconds of what makes `stored` again, without the output if that is not part of it; `again_bytes`: its
            peak.
        gradient_bytes: gradients that its backward pass starts with.
        result_bytes: weight gradients that its backward pass leaves.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    units: frozenset[int]
    output: int | None
    stored: frozenset[int]
    forward_s: float
    backward_s: float
    output_bytes: int
    stored_bytes: int
    forward_bytes: int
    storing_bytes: int
    backward_bytes: int
    again_s: float
    again_bytes: int
    gradient_bytes: int
    result_bytes: int


class Chain:
    """The chain of a graph.

    Args:
        ends: positions behind each stage but the last, in the tasks of the forward pass; None: wherever one block is
            handed on. Stages of such ends may read blocks of several stages, and have no output.

    Attributes:
        problem: finds what can be made again.
        stages: in the order of the forward pass; the last one contains the loss.
        fixed_bytes: held all the time: the caller's blocks, and what is kept.
    """

    def __init__(self, graph: TaskGraph, cost: CostModel, ends: Sequence[int] | None = None) -> None:
        self.problem = Problem(graph, cost, large_bytes(graph))
        self._graph = graph
        self._saved = saved_for_backward(graph)
        self._forward = [task for task in graph.tasks if task.phase not in AFTER_THE_LOSS]
        self._backward = [task for task in graph.tasks if task.phase is Phase.BACKWARD]
        self._droppable = {b: n for b, n in self.problem.unit_of.items() if self.problem.units[n].makers}
        self._kept = set[int]()
        self._last_forward = {b: p for p, t in enumerate(self._forward) for b in (*t.reads, *t.writes)}
        cuts: list[Cut] = self._find_cuts() if ends is None else [(end, None) for end in ends]
        self._kept |= self._saved - self._droppable.keys()
        self.fixed_bytes = graph.external_bytes + graph.size_bytes(self._kept)
        self.stages = self._measured(*self._divided(cuts))

    # ---- cuts ---------------------------------------------------------------------------------------

    def _find_cuts(self) -> list[Cut]:
        """Return the cuts, after what skips over others within large stages has been kept."""
        large_bytes = self._graph.size_bytes(self._saved) // LARGE_SHARE
        while True:
            cuts, skipping = list(self._cuts()), set[int]()
            for start, end in pairwise((0, *(end for end, _ in cuts), len(self._forward))):
                made = {block for task in self._forward[start:end] for block in task.creates}
                if self._graph.size_bytes(made & self._saved & self._droppable.keys()) > large_bytes:
                    skipping |= self._longest(start, end)
            if not skipping:
                return cuts
            units = {self._droppable[block] for block in skipping}
            blocks = {block for unit in units for block in self.problem.units[unit].blocks}
            self._kept |= blocks
            for block in blocks:
                self._droppable.pop(block, None)

    def _longest(self, start: int, end: int) -> set[int]:
        """Return the block held longest of those that are held together with another after a task of a stage."""
        made_at = {block: at for at, task in enumerate(self._forward) for block in task.creates}
        spans = {}
        for block in self._droppable:
            first, last = max(start, made_at[block]), min(end - 1, self._last_forward[block])
            if last > first:
                spans[block] = range(first, last)
        counts = Counter(position for span in spans.values() for position in span)
        skipping = [block for block, span in spans.items() if any(counts[position] > 1 for position in span)]
        return {max(skipping, key=lambda block: (len(spans[block]), block))} if skipping else set()

    def _cuts(self) -> Iterator[Cut]:
        """Yield the position behind each stage, and the block that crosses there."""
        crossing, made = set[int](), set[int]()
        latest = -1
        for position, task in enumerate(self._forward[:-1]):
            for block in task.creates:
                if block in self._droppable:
                    made.add(block)
                    crossing.add(block)
                    latest = max(latest, self.problem.units[self._droppable[block]].makers[-1])
            crossing -= {b for b in (*task.reads, *task.writes) if self._last_forward[b] == position}
            if made and len(crossing) <= 1 and latest <= task.index and crossing <= made:
                yield position + 1, next(iter(crossing), None)
                made = set()

    def _divided(self, cuts: list[Cut]) -> tuple[list[Cut], list[list[int]]]:
        """Return the cuts, with the end as the last, and the tasks of the backward pass of each stage."""
        if len(cuts) >= LONGEST:
            step = -(-(len(cuts) + 1) // LONGEST)
            cuts = cuts[step - 1 :: step]
        cuts.append((len(self._forward), None))
        stage_of: dict[int, int] = {}  # by block
        of_layer: dict[int, set[int]] = {}
        start = 0
        for number, (end, _) in enumerate(cuts):
            for task in self._forward[start:end]:
                of_layer.setdefault(task.layer, set()).add(number)
                stage_of |= {block: number for block in task.creates if block in self._droppable}
            start = end
        outputs = {b for b, number in stage_of.items() if self._last_forward[b] >= cuts[number][0]}
        backward: list[list[int]] = [[] for _ in cuts]
        current = len(cuts) - 1
        for task in self._backward:
            own = [stage_of[b] for b in task.reads if b in stage_of and b not in outputs]
            layers = [number for number in of_layer.get(task.layer, ()) if number <= current]
            current = min([current, *own, *([max(layers)] if layers else [])])
            backward[current].append(task.index)
        return cuts, backward

    # ---- sizes --------------------------------------------------------------------------------------

    def _measured(self, cuts: list[Cut], backward: list[list[int]]) -> tuple[Stage, ...]:
        gradients, starting, remaining = self._gradient_bytes()
        stages, start, seconds = [], 0, self.problem.duration_s
        size_bytes, tasks = self._graph.size_bytes, self._graph.tasks
        for (end, output), own in zip(cuts, backward, strict=True):
            forward = [task.index for task in self._forward[start:end]]
            made = {b for index in forward for b in tasks[index].creates if b in self._droppable}
            read = {b for index in own for b in tasks[index].reads}
            stored = frozenset(made & read)
            crossing = frozenset(() if output is None else (output,))
            both = stored | crossing
            again = self._makers(forward, stored)
            stages.append(
                Stage(
                    forward=tuple(forward),
                    backward=tuple(own),
                    units=frozenset(self._droppable[block] for block in made),
                    output=output,
                    stored=stored,
                    forward_s=sum(seconds[index] for index in forward),
                    backward_s=sum(seconds[index] for index in own),
                    output_bytes=size_bytes(crossing),
                    stored_bytes=size_bytes(both),
                    forward_bytes=self.forward_peak_bytes(forward, crossing),
                    storing_bytes=self.forward_peak_bytes(forward, both),
                    backward_bytes=self._backward_peak(own, stored, gradients),
                    again_s=sum(seconds[index] for index in again),
                    again_bytes=self.forward_peak_bytes(again, stored),
                    gradient_bytes=starting[own[0]] if own else 0,
                    result_bytes=sum(remaining[index] for index in own),
                )
            )
            start = end
        return tuple(stages)

    def _makers(self, forward: list[int], blocks: frozenset[int]) -> list[int]:
        """Return those tasks of a stage that make some of its blocks, with what they read."""
        needed, found = set(blocks), []
        for index in reversed(forward):
            task = self._graph.tasks[index]
            if not needed.isdisjoint(task.writes):
                found.append(index)
                needed.update(b for b in task.reads if b in self._droppable)
        return found[::-1]

    def forward_peak_bytes(self, tasks: list[int], stays: frozenset[int]) -> int:
        """Return the most bytes of what a stage makes, while it stores these blocks and drops others when it can."""
        graph, held = self._graph, dict[int, int]()
        last = {b: index for index in tasks for b in self.problem.touched[index]}
        peak_bytes = 0
        for index in tasks:
            task = graph.tasks[index]
            held |= {b: graph.blocks[b].size_bytes for b in task.creates if b not in self._kept}
            peak_bytes = max(peak_bytes, sum(held.values()) + task.workspace_bytes)
            for block in [b for b in held if last[b] == index and b not in stays]:
                del held[block]
        return peak_bytes

    def _backward_peak(self, tasks: list[int], stored: frozenset[int], gradients: dict[int, int]) -> int:
        last = {b: index for index in tasks for b in self._graph.tasks[index].reads if b in stored}
        results_bytes = peak_bytes = 0
        for index in tasks:
            stored_bytes = self._graph.size_bytes(b for b, final in last.items() if final >= index)
            results_bytes += self._lasting_bytes(index)
            workspace_bytes = self._graph.tasks[index].workspace_bytes
            peak_bytes = max(peak_bytes, stored_bytes + gradients[index] + results_bytes + workspace_bytes)
        return peak_bytes

    def _gradient_bytes(self) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
        """Return for each task of the backward pass the bytes of gradients up to and during it, and those that last."""
        during, before, lasting = {}, {}, {}
        held: dict[int, int] = {}
        for task in self._backward:
            before[task.index] = sum(held.values())
            held |= {b: self._graph.blocks[b].size_bytes for b in task.creates if not self._lasts(b)}
            during[task.index] = sum(held.values())
            lasting[task.index] = self._lasting_bytes(task.index)
            for block in [b for b in held if self._graph.last_use[b] <= task.index]:
                del held[block]
        return during, before, lasting

    def _lasting_bytes(self, index: int) -> int:
        return self._graph.size_bytes(b for b in self._graph.tasks[index].creates if self._lasts(b))

    def _lasts(self, block: int) -> bool:
        """Return whether a block is held to the end of the backward pass."""
        is_result = self._graph.blocks[block].role in RESULT_ROLES
        return is_result or self._graph.last_use[block] > self._backward[-1].index


class ChainReplay(Replay):
    """Replays a chain by stages.

    Args:
        chain: all of whose stages run forward before the first runs backward.
    """

    def __init__(self, chain: Chain) -> None:
        super().__init__(chain.problem)
        self._chain = chain
        self._ran: set[int] = set()

    def forward(self, number: int, *, stores: bool, gives_output: bool = True) -> None:
        """Run a stage forward, for the first time or again.

        Args:
            stores: keep what its backward pass reads; otherwise only its output.
            gives_output: make the output again as well.
        """
        stage = self._chain.stages[number]
        output = () if stage.output is None or not gives_output else (stage.output,)
        if number in self._ran:
            self.provide((*sorted(stage.stored), *output) if stores else output)
        else:
            self._ran.add(number)
            for index in stage.forward:
                self.run(index)
        if not stores:
            own = self._chain.problem.unit_of[stage.output] if stage.output is not None else -1
            self.drop(stage.units - {own})

    def drop_output(self, number: int) -> None:
        """Drop what a stage hands to the next."""
        output = self._chain.stages[number].output
        if output is not None:
            self.drop((self._chain.problem.unit_of[output],))

    def backward(self, number: int) -> None:
        """Run a stage's backward pass."""
        for index in self._chain.stages[number].backward:
            self.run(index)
