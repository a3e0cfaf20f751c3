"""A step of one rank under fully sharded data parallelism: its weights in shards, and the collectives that gather and reduce.

    gather 1 | gather 2, forward 1 | gather 3, forward 2 | ...       weights of a wrapped module, while the one before it runs
    ... gather 2, backward 3 | reduce 3, gather 1, backward 2 | ...  gathered again unless they have stayed; gradients leave in parts

Collectives are tasks on a stream of their own. Gathered weights are blocks of the step, once for each pass, and so are the buffers
of the collectives; a rank's shards of weights, gradients and the optimizer's states take the place of the whole ones. In
`TaskGraph.plain` the positions and `Task.releases` are those of torch: the weights of one module are gathered ahead, in both passes,
and the buffer of a reduction is given back when the next one begins.

After Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023, Section 3.3.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from math import ceil, prod

import torch

from membench.core.call import Value, values_in
from membench.core.collective import Collective, CollectiveKind
from membench.core.sharding import Sharding
from membench.core.task_graph import (
    AFTER_THE_LOSS,
    Block,
    Kind,
    Phase,
    Role,
    Task,
    TaskGraph,
    numbered,
    rename_blocks,
)

_ROOT = "root"


def shard(graph: TaskGraph, sharding: Sharding) -> TaskGraph:
    """Return the graph of a rank, whose samples are those of the graph."""
    if sharding.ranks == 1:
        return graph
    plain = graph.plain and _Sharded(graph.plain, sharding).graph()
    return replace(_Sharded(graph, sharding).graph(), plain=plain)


class _Group:
    """The weights of one wrapped module, or of the root.

    Attributes:
        weights: their blocks in the graph that is sharded.
        forward, backward: the first and the last task of each pass that uses one; None: no task does.
        ready: the last task that touches one of their gradients; None: they have none.
    """

    def __init__(self, graph: TaskGraph, name: str, weights: Sequence[Block]) -> None:
        self.name, self.weights = name, weights
        blocks = {block.index for block in weights}
        self.forward = _span(graph, blocks, is_backward=False)
        self.backward = _span(graph, blocks, is_backward=True)
        gradients = dict(graph.gradients)
        self.gradients = {
            block.name: value for block in weights if (value := gradients.get(block.name)) is not None
        }
        made = {value.block for value in self.gradients.values()}
        self.ready = max(
            (task.index for task in graph.tasks if not made.isdisjoint((*task.reads, *task.writes))),
            default=None,
        )

    @property
    def size_bytes(self) -> int:
        return sum(block.size_bytes for block in self.weights)


def _span(graph: TaskGraph, blocks: set[int], *, is_backward: bool) -> tuple[int, int] | None:
    uses = [
        task.index
        for task in graph.tasks
        if (task.phase in AFTER_THE_LOSS) is is_backward
        and not blocks.isdisjoint((*task.reads, *task.writes))
    ]
    return (uses[0], uses[-1]) if uses else None


class _Sharded:
    """Builds the graph of a rank.

    `_before` and `_behind` are the tasks that are added before and behind each task of the graph, `_released` what plain PyTorch gives
    back behind it.
    """

    def __init__(self, graph: TaskGraph, sharding: Sharding) -> None:
        self._graph, self._sharding = graph, sharding
        self._blocks = list(graph.blocks)
        self._before: defaultdict[int, list[Task]] = defaultdict(list)
        self._behind: defaultdict[int, list[Task]] = defaultdict(list)
        self._released: defaultdict[int, list[int]] = defaultdict(list)
        self._renamed: dict[bool, dict[int, int]] = {False: {}, True: {}}  # by pass: gathered weights
        self._gradients = dict(graph.gradients)
        calls = (task.call for task in graph.tasks if task.call)
        self._dtypes = {
            value.block: value.dtype for call in calls for value in values_in((call.args, call.kwargs))
        }
        self._groups = list(self._of_modules())

    def graph(self) -> TaskGraph:
        """Return the graph of the rank."""
        for group in self._groups:
            self._divide(group)
        forward = sorted((g for g in self._groups if g.forward), key=lambda g: g.forward or (0, 0))
        backward = sorted((g for g in self._groups if g.backward), key=lambda g: g.backward or (0, 0))
        self._gather(forward, is_backward=False)
        again = [group for group in backward if self._is_given_back(group)]
        self._gather(again, is_backward=True)
        for group in backward:
            if not self._is_given_back(group):
                self._renamed[True] |= {b.index: self._renamed[False][b.index] for b in group.weights}
        self._release_gathered()
        self._reduce(sorted((g for g in self._groups if g.ready is not None), key=lambda g: g.ready or 0))
        return replace(
            self._graph,
            blocks=tuple(self._blocks),
            tasks=numbered(self._tasks()),
            gradients=tuple(self._gradients.items()),
        )

    def _of_modules(self) -> Iterable[_Group]:
        weights = {block.name: block for block in self._graph.blocks if block.role is Role.WEIGHT}
        for names in self._sharding.groups:
            named = [weights.pop(name) for name in names if name in weights]
            if named:
                yield _Group(self._graph, _common(names), named)
        if weights:
            yield _Group(self._graph, _ROOT, list(weights.values()))

    def _is_given_back(self, group: _Group) -> bool:
        """Return whether a group is gathered for each pass: the root is not, as its last task is followed by the first one."""
        is_root = group.name == _ROOT
        return group.forward is None or (self._sharding.reshard_after_forward and not is_root)

    def _divide(self, group: _Group) -> None:
        """Put a rank's shards in the place of weights and their gradients."""
        for block in group.weights:
            computed = self._dtypes[block.index]
            elements = ceil(block.size_bytes // computed.itemsize / self._sharding.ranks)
            size_bytes = elements * self._kept_dtype(computed).itemsize
            self._blocks[block.index] = replace(block, size_bytes=size_bytes)
        for name, value in group.gradients.items():
            kept = self._kept_dtype(value.dtype)
            first, *others = value.shape or (1,)
            shape = ceil(first / self._sharding.ranks), *others
            size_bytes = prod(shape) * kept.itemsize
            of = self._blocks[value.block]
            self._blocks[value.block] = replace(of, role=Role.GRADIENT)
            if self._sharding.in_between:
                self._gradients[name] = None
                continue
            role = Role.ACCUMULATED if self._sharding.accumulates else Role.WEIGHT_GRADIENT
            index = self._add(f"{name}:gradient shard", size_bytes, role, of.layer)
            strides = tuple(prod(shape[n + 1 :]) for n in range(len(shape)))
            self._gradients[name] = Value(index, kept, shape, strides, 0)

    def _gather(self, groups: Sequence[_Group], *, is_backward: bool) -> None:
        """Gather groups in the order of their uses, each while the one before it runs."""
        phase = Phase.BACKWARD if is_backward else Phase.FORWARD
        turn = next((t.index for t in self._graph.tasks if t.phase is Phase.BACKWARD), 0)
        for position, group in enumerate(groups):
            first = self._first(group, is_backward)
            issued = turn if is_backward else 0
            if position:
                issued = max(issued, self._first(groups[position - 1], is_backward))
            layer = self._graph.tasks[first].layer
            suffix = " in the backward pass" if is_backward and group.forward else ""
            sent = self._add(
                f"{group.name}:shards{suffix}",
                ceil(group.size_bytes / self._sharding.ranks),
                Role.GATHERED,
                layer,
            )
            shards = tuple(block.index for block in group.weights)
            gathered = [
                self._add(
                    f"{block.name}:gathered{suffix}",
                    block.size_bytes,
                    Role.GATHERED,
                    layer,
                    self._renamed[False].get(block.index) if is_backward else None,
                )
                for block in group.weights
            ]
            self._renamed[is_backward] |= dict(zip(shards, gathered, strict=True))
            copy_in = self._copy(f"{group.name}:copy in{suffix}", phase, layer, shards, (sent,))
            output = tuple(gathered)
            if self._sharding.copies_out:
                output = (
                    self._add(f"{group.name}:all-gather{suffix}", group.size_bytes, Role.GATHERED, layer),
                )
            collective = Collective(CollectiveKind.ALL_GATHER, group.size_bytes, self._sharding.axis)
            gather = self._collective(group, phase, layer, (sent,), output, collective, suffix)
            self._before[issued] += [copy_in, gather]  # behind what the module before it waits for
            # what was sent is given back once it has arrived, where the device waits for it anyway
            arrived = self._copy(f"{group.name}:arrival{suffix}", phase, layer, (), ())
            if self._sharding.copies_out:
                arrived = self._copy(f"{group.name}:copy out{suffix}", phase, layer, output, gathered)
            held = output if self._sharding.copies_out else ()
            self._before[first].append(replace(arrived, reads=(sent, *output), releases=(sent, *held)))

    def _first(self, group: _Group, is_backward: bool) -> int:
        span = group.backward if is_backward else group.forward
        assert span is not None
        return span[0]

    def _release_gathered(self) -> None:
        for group in self._groups:
            for is_backward, span in ((False, group.forward), (True, group.backward)):
                stays = not is_backward and group.backward and not self._is_given_back(group)
                if span and not stays:
                    gathered = self._renamed[is_backward]
                    self._released[span[1]] += [gathered[block.index] for block in group.weights]

    def _reduce(self, groups: Sequence[_Group]) -> None:
        """Reduce the gradients of groups in the order in which they are complete."""
        before, due = None, list[Task]()
        for group in groups:
            assert group.ready is not None
            layer = self._graph.tasks[group.ready].layer
            whole = tuple(value.block for value in group.gradients.values())
            if self._sharding.in_between:
                self._behind[group.ready].append(self._kept(group, layer, whole))
                continue
            shards = [self._shard_of(name) for name in group.gradients]
            reduced = [self._added_to(block) for block in shards] if self._sharding.accumulates else shards
            sent = self._reduction(group, layer, whole, reduced, before)
            if self._sharding.accumulates:
                due.append(self._accumulation(group, layer, reduced, shards))
            before = sent
        behind = self._behind[len(self._graph.tasks) - 1]
        behind += due  # the compute stream does not wait for reductions before
        if before is not None:
            behind[-1] = replace(behind[-1], releases=(*behind[-1].releases, before))

    def _reduction(
        self, group: _Group, layer: int, whole: tuple[int, ...], reduced: Sequence[int], before: int | None
    ) -> int:
        """Add the tasks that make a rank's shards of whole gradients, and return the buffer that is sent.

        Args:
            before: the buffer of the reduction before, which is given back when this one begins.
        """
        assert group.ready is not None
        dtypes = [value.dtype for value in group.gradients.values()]
        elements = sum(
            self._graph.blocks[block].size_bytes // dtype.itemsize
            for block, dtype in zip(whole, dtypes, strict=True)
        )
        itemsize = max((self._sharding.reduce_dtype or dtype).itemsize for dtype in dtypes)
        sent = self._add(f"{group.name}:gradients", elements * itemsize, Role.GRADIENT, layer)
        copy_in = self._copy(f"{group.name}:copy in gradients", Phase.BACKWARD, layer, whole, (sent,))
        scattered = Collective(CollectiveKind.REDUCE_SCATTER, elements * itemsize, self._sharding.axis)
        last = () if before is None else (before,)
        tasks = [
            replace(copy_in, reads=(*whole, *last), releases=(*whole, *last)),
            self._collective(group, Phase.BACKWARD, layer, (sent,), reduced, scattered),
        ]
        if self._sharding.replicas:
            size_bytes = sum(self._blocks[block].size_bytes for block in reduced)
            everywhere = Collective(CollectiveKind.ALL_REDUCE, size_bytes, self._sharding.replicas)
            averaged = self._collective(group, Phase.BACKWARD, layer, tuple(reduced), reduced, everywhere)
            tasks.append(replace(averaged, creates=()))
        self._behind[group.ready] += tasks
        return sent

    def _kept(self, group: _Group, layer: int, made: tuple[int, ...]) -> Task:
        """Return the task that adds gradients to the whole ones of the micro-batches before."""
        kept = self._add(f"{group.name}:whole gradients", group.size_bytes, Role.ACCUMULATED, layer)
        task = self._copy(f"{group.name}:accumulate", Phase.BACKWARD, layer, made, (kept,))
        moved_bytes = task.moved_bytes + group.size_bytes
        return replace(task, reads=(*made, kept), creates=(), moved_bytes=moved_bytes, releases=made)

    def _added_to(self, shard: int) -> int:
        block = self._blocks[shard]
        return self._add(f"{block.name} of a micro-batch", block.size_bytes, Role.GRADIENT, block.layer)

    def _accumulation(self, group: _Group, layer: int, reduced: Sequence[int], shards: Sequence[int]) -> Task:
        """Return the task that adds a micro-batch's shards of gradients to those before."""
        task = self._copy(f"{group.name}:accumulate", Phase.BACKWARD, layer, (*reduced, *shards), shards)
        return replace(task, creates=(), releases=tuple(reduced))

    def _shard_of(self, name: str) -> int:
        value = self._gradients[name]
        assert value is not None
        return value.block

    def _tasks(self) -> Iterable[Task]:
        """Yield all tasks in order."""
        for task in self._graph.tasks:
            yield from self._added(self._before[task.index])
            renamed = rename_blocks(task, self._renamed[task.phase in AFTER_THE_LOSS])
            given_back = self._released[task.index] if self._is_plain else []
            yield replace(renamed, releases=(*renamed.releases, *given_back)) if given_back else renamed
            yield from self._added(self._behind[task.index])

    def _added(self, tasks: Sequence[Task]) -> Iterable[Task]:
        return tasks if self._is_plain else (replace(task, releases=()) for task in tasks)

    @property
    def _is_plain(self) -> bool:
        return self._graph.plain is None

    def _copy(
        self, name: str, phase: Phase, layer: int, source: Sequence[int], target: Sequence[int]
    ) -> Task:
        """Return a task of the device that copies blocks."""
        moved_bytes = sum(self._blocks[block].size_bytes for block in chain(source, target))
        return Task(
            -1, name, Kind.OTHER, phase, layer, reads=tuple(source), writes=tuple(target), creates=tuple(target),
            moved_bytes=moved_bytes, launches=min(1, moved_bytes),
        )  # fmt: skip

    def _collective(
        self,
        group: _Group,
        phase: Phase,
        layer: int,
        reads: tuple[int, ...],
        creates: Sequence[int],
        collective: Collective,
        suffix: str = "",
    ) -> Task:
        name = f"{group.name}:{collective.kind.replace('_', '-')}{suffix}"
        return Task(
            -1, name, Kind.OTHER, phase, layer, reads=reads, writes=tuple(creates), creates=tuple(creates), collective=collective,
        )  # fmt: skip

    def _add(self, name: str, size_bytes: int, role: Role, layer: int, repeats: int | None = None) -> int:
        """Add a block, and return its index."""
        self._blocks.append(Block(len(self._blocks), name, size_bytes, role, layer, repeats=repeats))
        return len(self._blocks) - 1

    def _kept_dtype(self, computed: torch.dtype) -> torch.dtype:
        return self._sharding.kept_dtype or computed


def _common(names: Sequence[str]) -> str:
    """Return what names of weights begin with: the name of their module."""
    parts = [name.split(".")[:-1] for name in names]
    common = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        common.append(level[0])
    return ".".join(common)
