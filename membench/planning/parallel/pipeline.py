"""The step of one rank of a pipeline: its stages' tasks for each micro-batch, and the messages between stages.

    receive, forward 0, send | receive, forward 1, send | receive, backward 0, send | ...

A rank's graph has the tasks of its actions in their order: activations of micro-batches under way are blocks like any
other, so that any method plans them. The gradient of the first micro-batch is the weight's; those of the others are
added to it.

In `TaskGraph.plain` lifetimes are those of torch.distributed.pipelining: inputs and outputs of a stage are held until
the backward pass of their micro-batch has ended, and what was sent back until the next action has.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from membench.core.graph.call import Call, Value
from membench.core.graph.changed_tasks import rename_blocks
from membench.core.graph.collective import Collective, CollectiveKind
from membench.core.graph.task_graph import EXTERNAL_ROLES, Block, GradientOf, Kind, Phase, Role, Task, TaskGraph
from membench.core.step.pipeline import Action, ActionKind, Pipeline
from membench.planning.parallel.collective_calls import flat, receives, sends
from membench.planning.parallel.stages import Stages

_SHARED = frozenset({Role.WEIGHT, Role.BUFFER, Role.CONSTANT})
"""What all micro-batches use together."""

ALL = -1
"""In place of a stage or a micro-batch: a block that several use."""


@dataclass(frozen=True)
class RankOfPipeline:
    """A rank's step.

    Attributes:
        callers: the caller's blocks, by their index in the graph of a micro-batch and its number, or `ALL`.
    """

    graph: TaskGraph
    callers: Mapping[tuple[int, int], int]


def pipelined(graph: TaskGraph, pipeline: Pipeline) -> list[RankOfPipeline]:
    """Return each rank's step.

    Args:
        graph: graph of one micro-batch, its gradients scaled to its part of the step and not accumulated.

    Raises:
        UnsupportedModel: see `Stages`.
    """
    cut = [(each, Stages(each, pipeline)) for each in (graph, graph.plain) if each]
    ranks = []
    for rank in range(pipeline.ranks):
        own = sorted({action.stage for action in pipeline.actions(rank)})
        callers = _callers_blocks(graph, [stages for _, stages in cut], own, pipeline.micro_batches)
        built = [_Rank(each, stages, pipeline, rank, callers) for each, stages in cut]
        whole, *plain = [each.graph() for each in built]
        ranks.append(RankOfPipeline(replace(whole, plain=plain[0] if plain else None), built[0].callers))
    return ranks


def _callers_blocks(
    graph: TaskGraph, cuts: Sequence[Stages], own: Sequence[int], micro_batches: int
) -> list[tuple[int, int]]:
    """Return a rank's blocks of the caller, each with its micro-batch or `ALL`, so that all graphs number them alike.

    What no stage uses belongs to the first.
    """
    used = {block for stages in cuts for stage in own for block in stages.used[stage]}
    by_any = {block for stages in cuts for blocks in stages.used.values() for block in blocks}
    return [
        (block.index, micro_batch)
        for block in graph.blocks
        if block.role in EXTERNAL_ROLES and (block.index in used or (0 in own and block.index not in by_any))
        for micro_batch in ([ALL] if block.role in _SHARED else range(micro_batches))
    ]


class _Rank:
    """Builds the graph of a rank."""

    def __init__(
        self, graph: TaskGraph, stages: Stages, pipeline: Pipeline, rank: int, callers: Sequence[tuple[int, int]]
    ) -> None:
        self._graph, self._stages, self._pipeline = graph, stages, pipeline
        self._actions = pipeline.actions(rank)
        self._own = sorted({action.stage for action in self._actions})
        self._passed = {stage: stages.passed(stage) for stage in self._own}
        used = {block for stage in self._own for block in stages.used[stage]}
        self._gradients = {name: value for name, value in graph.gradients if value and value.block in used}
        self._results = {value.block: value for value in self._gradients.values()}
        self._loss = graph.loss if graph.loss and graph.loss.block in used else None
        if self._loss:
            self._results[self._loss.block] = self._loss
        self._blocks: list[Block] = []
        self._tasks: list[Task] = []
        self._layers: list[str] = []
        self._copies: dict[tuple[int, int, int], int] = {}
        self._known: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)  # of `_block`
        self._layer_copies: dict[tuple[int, int], int] = {}
        self._totals: dict[int, Value] = {}
        self.callers = {
            (block, micro_batch): self._block(block, Action(ActionKind.FORWARD, ALL, micro_batch))
            for block, micro_batch in callers
        }

    def graph(self) -> TaskGraph:
        """Return the graph of the rank."""
        sent_back: tuple[int, ...] = ()
        for action in self._actions:
            self._add(action)
            self._release(sent_back)
            sent_back = () if self._stages.is_split else self._sent_back(action)
            if action.kind in (ActionKind.BACKWARD, ActionKind.WEIGHT_GRADIENT):
                self._release(self._held(action))
        self._release(sent_back)
        stages = ", ".join(map(str, self._own))
        return replace(
            self._graph,
            name=f"{self._graph.name}, stage {stages} of {self._pipeline.stages}",
            batch_size=self._graph.batch_size * self._pipeline.micro_batches,
            blocks=tuple(self._blocks),
            tasks=tuple(self._tasks),
            layers=tuple(self._layers),
            loss=self._totals[self._loss.block] if self._loss else None,
            gradients=tuple((name, self._totals[value.block]) for name, value in self._gradients.items()),
        )

    def _add(self, action: Action) -> None:
        """Add an action: what it waits for, its tasks, and what others wait for."""
        part = action.stage, action.kind
        tasks = self._stages.tasks.get(part, ())
        for block in self._stages.received[part]:
            self._pass(block, action, CollectiveKind.RECEIVE)
        last = {block: task.index for task in tasks for block in (*task.reads, *task.writes)}
        for task in tasks:
            self._tasks.append(self._copied(task, action))
            for block in {*task.reads, *task.writes} & self._results.keys():
                if last[block] == task.index and task.index >= self._complete(block):
                    self._add_up(self._results[block], action)
        for block in self._stages.sent[part]:
            self._pass(block, action, CollectiveKind.SEND)

    def _complete(self, block: int) -> int:
        """Return the last task of a micro-batch that touches a gradient or the loss."""
        return self._graph.last_use[block]

    # ---- blocks and layers of a micro-batch ---------------------------------------------------------

    def _block(self, block: int, action: Action) -> int:
        known = self._known[action.stage, action.micro_batch]
        if block not in known:
            known[block] = self._copy(block, action)
        return known[block]

    def _copy(self, block: int, action: Action) -> int:
        role = self._graph.blocks[block].role
        stage = ALL if role in EXTERNAL_ROLES else action.stage
        micro_batch = ALL if role in _SHARED else action.micro_batch
        key = block, stage, micro_batch
        if key not in self._copies:
            self._copies[key] = len(self._blocks)
            of = self._graph.blocks[block]
            name = of.name if micro_batch == ALL else f"{self._prefix(action)}{of.name}"
            layer = of.layer if of.layer < 0 else self._layer(of.layer, action)
            if role is Role.WEIGHT_GRADIENT and (micro_batch or self._pipeline.gradient_dtype):
                role = Role.PARTIAL_GRADIENT
            role = Role.ACTIVATION if role is Role.LOSS else role
            role = Role.HELD if role is Role.OUTPUT and not self._is_last(action) else role
            self._blocks.append(Block(len(self._blocks), name, of.size_bytes, role, layer))
        return self._copies[key]

    def _layer(self, layer: int, action: Action) -> int:
        key = layer, action.micro_batch
        if key not in self._layer_copies:
            self._layer_copies[key] = len(self._layers)
            self._layers.append(f"{self._prefix(action)}{self._graph.layers[layer]}")
        return self._layer_copies[key]

    def _prefix(self, action: Action) -> str:
        return f"micro-batch {action.micro_batch}: " if self._pipeline.micro_batches > 1 else ""

    def _copied(self, task: Task, action: Action) -> Task:
        """Return a task on the blocks of a micro-batch; what passes between stages outlives it."""
        known = self._known[action.stage, action.micro_batch]
        for block in (*task.reads, *task.writes, *task.releases):
            if block not in known:
                known[block] = self._copy(block, action)
        passed = self._passed[action.stage]
        return rename_blocks(
            task,
            known,
            index=len(self._tasks),
            name=f"{self._prefix(action)}{task.name}",
            layer=self._layer(task.layer, action),
            releases=tuple(
                [known[block] for block in task.releases if not (block in passed or block in self._results)]
            ),
        )

    # ---- messages -----------------------------------------------------------------------------------

    def _pass(self, block: int, action: Action, kind: CollectiveKind) -> None:
        index = self._block(block, action)
        is_forward = action.kind is ActionKind.FORWARD
        other = action.stage + (1 if is_forward else -1) * (1 if kind is CollectiveKind.SEND else -1)
        stages = (action.stage, other) if kind is CollectiveKind.SEND else (other, action.stage)
        name = f"block {block}, {self._graph.blocks[block].name}"  # names occur several times
        message = f"stage {stages[0]} to {stages[1]}, micro-batch {action.micro_batch}: {name}"
        size_bytes = self._blocks[index].size_bytes
        made = (index,) if kind is CollectiveKind.RECEIVE else ()
        call = receives if made else sends
        self._tasks.append(
            Task(
                len(self._tasks), f"{kind} {message}", Kind.OTHER,
                Phase.FORWARD if is_forward else Phase.BACKWARD, self._blocks[index].layer,
                reads=() if made else (index,), writes=made, creates=made,
                collective=Collective(kind, size_bytes, self._pipeline.axis, message, other - action.stage),
                call=call(flat(index, torch.uint8, size_bytes), self._pipeline.axis, other - action.stage, message),
            )
        )  # fmt: skip

    def _sent_back(self, action: Action) -> tuple[int, ...]:
        """Return what an action of the backward pass has sent."""
        if action.kind is ActionKind.FORWARD:
            return ()
        return tuple(self._block(block, action) for block in self._stages.sent[action.stage, action.kind])

    def _held(self, action: Action) -> Iterator[int]:
        """Yield what passed for a micro-batch whose backward pass has ended, but not what the next action sends.

        And the output that the program holds until that of the next micro-batch is there, which begins with it held.
        """
        kept = set(self._sent_back(action)) if not self._stages.is_split else set()
        blocks = {self._block(block, action) for block in self._passed[action.stage]}
        if not self._is_last(action):
            blocks |= {self._block(block.index, action) for block in self._graph.blocks if block.role is Role.OUTPUT}
        yield from sorted(blocks - kept)

    def _is_last(self, action: Action) -> bool:
        return action.micro_batch == self._pipeline.micro_batches - 1

    def _release(self, blocks: Iterable[int]) -> None:
        """Let plain PyTorch give blocks back behind the last task so far."""
        released = tuple(blocks)
        if self._graph.is_plain and released:
            last = self._tasks[-1]
            self._tasks[-1] = replace(last, releases=(*last.releases, *released))

    # ---- sums over micro-batches --------------------------------------------------------------------

    def _add_up(self, value: Value, action: Action) -> None:
        """Add a micro-batch's gradient to those before, or its part of the loss."""
        is_loss = value is self._loss
        own = replace(value, block=self._block(value.block, action))
        scale = 1 / self._pipeline.micro_batches if is_loss else 1
        total = self._totals.get(value.block)
        dtype = value.dtype if is_loss else self._pipeline.gradient_dtype
        if total is not None:
            scaled = (("alpha", scale),) if is_loss else ()
            self._sum(own, total, Call("aten.add_.Tensor", (total, own), scaled, (None,)), action)
        elif dtype is None:
            self._totals[value.block] = own
        else:
            role = Role.LOSS if is_loss else Role.WEIGHT_GRADIENT
            name = self._graph.blocks[value.block].name
            size_bytes = self._graph.blocks[value.block].size_bytes // value.dtype.itemsize * dtype.itemsize
            total = replace(own, block=len(self._blocks), dtype=dtype)
            layer = self._blocks[own.block].layer
            self._blocks.append(Block(total.block, f"{name} of all micro-batches", size_bytes, role, layer))
            self._totals[value.block] = total
            call = Call("aten._to_copy.default", (own,), (("dtype", dtype),), (total,))
            if is_loss:
                call = Call("aten.mul.Tensor", (own, scale), (), (total,))
            self._sum(own, total, call, action)

    def _sum(self, own: Value, total: Value, call: Call, action: Action) -> None:
        after = self._tasks[-1]
        is_first = call.outputs[0] is not None
        sizes_bytes = [self._blocks[value.block].size_bytes for value in (own, total)]
        self._tasks.append(
            Task(
                len(self._tasks), f"{after.name}:accumulate", Kind.OTHER, after.phase, after.layer,
                reads=(own.block,) if is_first else (total.block, own.block), writes=(total.block,),
                creates=(total.block,) if is_first else (), operations=sizes_bytes[0] // own.dtype.itemsize,
                moved_bytes=sum(sizes_bytes),  # the cost of a kernel adds what it writes in place
                gradient_of=GradientOf.WEIGHT if after.phase is Phase.BACKWARD else None, call=call,
                releases=(own.block,) if self._graph.is_plain else (),
            )
        )  # fmt: skip
