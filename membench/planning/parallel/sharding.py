"""A rank's step under fully sharded data parallelism: its shards, and collectives that gather and reduce.

    gather 1 | gather 2, forward 1 | gather 3, forward 2 | ...       a wrapped module's weights, while the last one runs
    ... gather 2, backward 3 | reduce 3, gather 1, backward 2 | ...  gathered again unless they stayed; gradients leave

Collectives are tasks on a stream of their own. Gathered weights are blocks of the step, once for each pass, and so are
the buffers of the collectives; a rank's shards of weights, gradients and the optimizer's states take the place of the
whole ones. In `TaskGraph.plain` the positions and `Task.releases` are those of torch: the weights of one module are
gathered ahead, in both passes, and the buffer of a reduction is given back when the next one begins. There,
`Block.pool` is the stream on which torch makes a tensor (``foreach_all_gather`` and ``foreach_reduce`` of FSDP2,
``_unshard`` and ``_post_backward_hook`` of FSDP1): shards that are sent, what is gathered of them, and what is reduced
do not lie between activations.

After Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023, Section 3.3.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count
from math import ceil, prod
from typing import Any

import torch

from membench.core.graph.call import Call, Value
from membench.core.graph.changed_tasks import changed, rename_blocks
from membench.core.graph.collective import Collective, CollectiveKind
from membench.core.graph.task_graph import AFTER_THE_LOSS, Block, Kind, Phase, Role, Task, TaskGraph
from membench.core.step.sharding import Sharding
from membench.planning.parallel.collective_calls import (
    MEAN,
    all_reduces,
    contiguous,
    copies_in,
    copies_out,
    cuts_for_ranks,
    flat,
    gathers,
    reduce_scatters,
)
from membench.planning.parallel.shard_sizes import ShardSizes
from membench.planning.parallel.weight_groups import WeightGroup, common_name, tasks_by_block

_ROOT = "root"

_SENT, _GATHERED, _REDUCED = "shards", "all-gather", "reduction"
"""Pools of torch's streams."""

_WIDE = (torch.float32, torch.bfloat16)
"""Formats whose sums over ranks do not overflow, and are divided afterwards; others are divided before, too."""


def shard(graph: TaskGraph, sharding: Sharding) -> TaskGraph:
    """Return the graph of a rank, whose samples are those of the graph."""
    if sharding.ranks == 1 and sharding.members is None:
        return graph
    return graph.map(lambda each: _Sharded(each, sharding).graph())


class _Sharded:
    """Builds the graph of a rank.

    `_before` and `_behind` are the tasks that are added before and behind each task of the graph, `_released` what
    plain PyTorch gives back behind it.
    """

    def __init__(self, graph: TaskGraph, sharding: Sharding) -> None:
        self._graph, self._sharding = graph, sharding
        self._blocks = list(graph.blocks)
        self._before: defaultdict[int, list[Task]] = defaultdict(list)
        self._behind: defaultdict[int, list[Task]] = defaultdict(list)
        self._released: defaultdict[int, list[int]] = defaultdict(list)
        self._renamed: dict[bool, dict[int, int]] = {False: {}, True: {}}  # by pass: gathered weights
        self._gradients = dict(graph.gradients)
        self._sizes = ShardSizes(graph, sharding)
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
            tasks=tuple(self._tasks()),
            gradients=tuple(self._gradients.items()),
        )

    def _of_modules(self) -> Iterable[WeightGroup]:
        weights = {block.name: block for block in self._sizes.weights}
        uses = tasks_by_block(self._graph)
        for names in self._sharding.groups:
            named = [weights.pop(name) for name in names if name in weights]
            if named:
                yield WeightGroup(self._graph, uses, common_name(names), named)
        if weights:
            yield WeightGroup(self._graph, uses, _ROOT, list(weights.values()))

    def _is_given_back(self, group: WeightGroup) -> bool:
        """Return whether a group is gathered for each pass; the root is not, whose last task precedes its first."""
        is_root = group.name == _ROOT
        return group.forward is None or (self._sharding.reshard_after_forward and not is_root)

    def _divide(self, group: WeightGroup) -> None:
        """Put a rank's shards in the place of weights and their gradients."""
        for block in group.weights:
            self._blocks[block.index] = replace(block, size_bytes=self._sizes.kept_bytes(block))
        kept: dict[torch.dtype, dict[str, Value]] = {}
        for name, value in group.gradients.items():
            kept.setdefault(self._sizes.kept_dtype(name, value.dtype), {})[name] = value
            self._blocks[value.block] = replace(self._blocks[value.block], role=Role.GRADIENT)
        for dtype, gradients in kept.items():
            if self._sharding.in_between:
                self._gradients |= dict.fromkeys(gradients)
            else:
                self._add_shards(group, gradients, dtype)

    def _add_shards(self, group: WeightGroup, gradients: Mapping[str, Value], dtype: torch.dtype) -> None:
        """Let a rank's shards of gradients be parts of one block, into which they are reduced."""
        layer = self._blocks[next(iter(gradients.values())).block].layer
        role = Role.ACCUMULATED if self._sharding.accumulates else Role.WEIGHT_GRADIENT
        offset = 0
        index = self._add(f"{group.name}:gradient shards", 0, role, layer, _REDUCED)
        for name, value in gradients.items():
            shape = self._sizes.shape(value.shape)
            self._gradients[name] = contiguous(index, dtype, shape, offset)
            offset += prod(shape)
        self._blocks[index] = replace(self._blocks[index], size_bytes=offset * dtype.itemsize)

    def _gather(self, groups: Sequence[WeightGroup], *, is_backward: bool) -> None:
        """Gather groups in the order of their uses, each while the one before it runs."""
        turn = next((t.index for t in self._graph.tasks if t.phase is Phase.BACKWARD), 0)
        issued = begins = turn if is_backward else 0
        for group in groups:
            copy_in, gather, arrived = self._gathering(group, is_backward)
            self._before[issued] += [copy_in, gather]  # behind what the module before it waits for
            self._before[self._first(group, is_backward)].append(arrived)
            issued = max(begins, self._first(group, is_backward))

    def _gathering(self, group: WeightGroup, is_backward: bool) -> tuple[Task, ...]:
        """Return the tasks that copy a group's shards, gather them and let the device wait for them."""
        phase = Phase.BACKWARD if is_backward else Phase.FORWARD
        layer = self._graph.tasks[self._first(group, is_backward)].layer
        suffix = " in the backward pass" if is_backward and group.forward else ""
        gathered_bytes = self._sizes.gathered_bytes(group.weights)
        sent_bytes = ceil(gathered_bytes / self._sharding.ranks)
        sent = self._add(f"{group.name}:shards{suffix}", sent_bytes, Role.GATHERED, layer, _SENT)
        shards = tuple(block.index for block in group.weights)
        gathered = [self._whole(block, layer, suffix, is_backward) for block in group.weights]
        self._renamed[is_backward] |= dict(zip(shards, gathered, strict=True))
        copy_in = self._copy(f"{group.name}:copy in{suffix}", phase, layer, shards, (sent,))
        output = tuple(gathered)
        if self._sharding.copies_out:
            name = f"{group.name}:all-gather{suffix}"
            output = (self._add(name, gathered_bytes, Role.GATHERED, layer, _SENT),)
        collective = Collective(CollectiveKind.ALL_GATHER, gathered_bytes, self._sharding.axis)
        gather = self._collective(group, phase, layer, (sent,), output, collective, suffix)
        # what was sent is given back once it has arrived, where the device waits for it anyway
        arrived = self._copy(f"{group.name}:arrival{suffix}", phase, layer, (), ())
        if self._sharding.copies_out:
            arrived = self._copy(f"{group.name}:copy out{suffix}", phase, layer, output, gathered)
        held = output if self._sharding.copies_out else ()
        arrived = replace(arrived, reads=(sent, *output), releases=(sent, *held))
        calls = self._gathering_calls(group, sent, output[0], gathered)
        tasks = zip((copy_in, gather, arrived), calls, strict=True)
        return tuple(replace(task, call=call) for task, call in tasks)

    def _whole(self, block: Block, layer: int, suffix: str, is_backward: bool) -> int:
        """Add the block of a gathered weight."""
        return self._add(
            f"{block.name}:gathered{suffix}",
            self._sizes.gathered_bytes([block]),
            Role.GATHERED,
            layer,
            repeats=self._renamed[False].get(block.index) if is_backward else None,
            pool="" if self._sharding.copies_out else _GATHERED,
        )

    def _gathering_calls(
        self, group: WeightGroup, sent: int, output: int, gathered: Sequence[int]
    ) -> tuple[Call | None, Call | None, Call | None]:
        """Return the calls that copy shards in, gather them and copy weights out; None where only simulated."""
        dtypes = {self._sizes.dtypes[block.index] for block in group.weights}
        if not self._sharding.copies_out or len(dtypes) > 1 or self._sharding.dimension:
            return None, None, None
        [dtype] = dtypes
        ranks, elements = self._sharding.ranks, [self._sizes.elements[block.index] for block in group.weights]
        shards = [
            flat(block.index, self._sizes.kept_dtype(block.name, dtype), number)
            for block, number in zip(group.weights, elements, strict=True)
        ]
        return (
            copies_in(shards, sent, dtype),
            gathers(flat(sent, dtype, sum(elements)), ranks, self._sharding.axis, output),
            copies_out(flat(output, dtype, ranks * sum(elements)), ranks, list(zip(gathered, elements, strict=True))),
        )

    def _first(self, group: WeightGroup, is_backward: bool) -> int:
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

    def _reduce(self, groups: Sequence[WeightGroup]) -> None:
        """Reduce the gradients of groups in the order in which they are complete."""
        before, due = None, list[Task]()
        for group in groups:
            assert group.ready is not None
            layer = self._graph.tasks[group.ready].layer
            whole = tuple(value.block for value in group.gradients.values())
            if self._sharding.in_between:
                self._behind[group.ready].append(self._kept(group, layer, whole))
                continue
            shards = list(dict.fromkeys(self._shard_of(name) for name in group.gradients))
            reduced = [self._added_to(block) for block in shards] if self._sharding.accumulates else shards
            sent = self._reduction(group, layer, whole, reduced, before)
            if self._sharding.accumulates:
                due.append(self._accumulation(group, layer, reduced, shards))
            before = sent
        if before is not None:  # the compute stream waits for reductions at the end of the backward pass, not before
            behind = self._behind[groups[-1].ready or 0]
            behind += due
            behind[-1] = replace(behind[-1], releases=(*behind[-1].releases, before))

    def _reduction(
        self, group: WeightGroup, layer: int, whole: tuple[int, ...], reduced: Sequence[int], before: int | None
    ) -> int:
        """Add the tasks that make a rank's shards of whole gradients, and return the buffer that is sent.

        Args:
            before: the buffer of the reduction before, which is given back when this one begins.
        """
        assert group.ready is not None
        dtypes = [value.dtype for value in group.gradients.values()]
        dtype = max((self._sharding.reduce_dtype or each for each in dtypes), key=lambda each: each.itemsize)
        elements = self._sizes.reduced_elements(group)
        size_bytes = elements * dtype.itemsize
        sent = self._add(f"{group.name}:gradients", size_bytes, Role.GRADIENT, layer)
        copy_in = self._copy(f"{group.name}:copy in gradients", Phase.BACKWARD, layer, whole, (sent,))
        scattered = Collective(CollectiveKind.REDUCE_SCATTER, size_bytes, self._sharding.axis)
        last = () if before is None else (before,)
        copy_in = replace(copy_in, reads=(*whole, *last), releases=(*whole, *last))
        scatter = self._collective(group, Phase.BACKWARD, layer, (sent,), reduced, scattered)
        scatter = replace(scatter, writes=(sent, *reduced))  # which engines may overwrite
        tasks = [copy_in, scatter]
        if self._sharding.replicas:
            reduced_bytes = sum(self._blocks[block].size_bytes for block in reduced)
            everywhere = Collective(CollectiveKind.ALL_REDUCE, reduced_bytes, self._sharding.replicas)
            averaged = self._collective(group, Phase.BACKWARD, layer, tuple(reduced), reduced, everywhere)
            tasks.append(replace(averaged, creates=()))
        calls = self._reducing_calls(group, flat(sent, dtype, elements), reduced)
        self._behind[group.ready] += [replace(task, call=call) for task, call in zip(tasks, calls, strict=False)]
        return sent

    def _reducing_calls(
        self, group: WeightGroup, sent: Value, reduced: Sequence[int]
    ) -> tuple[Call | None, Call | None, Call | None]:
        """Return the calls that copy gradients in, reduce and average replicas' shards; None where only simulated."""
        kept = {self._sizes.kept_dtype(name, value.dtype) for name, value in group.gradients.items()}
        is_converted_between = bool(self._sharding.replicas) and kept != {sent.dtype}
        is_simulated = not self._sharding.copies_out or self._sharding.accumulates or sent.dtype not in _WIDE
        if is_simulated or self._sharding.dimension or len(kept) > 1 or is_converted_between:
            return None, None, None
        ranks = self._sharding.ranks
        shards = flat(reduced[0], kept.pop(), sent.shape[0] // ranks)
        return (
            cuts_for_ranks(list(group.gradients.values()), ranks, sent),
            reduce_scatters(sent, MEAN, ranks, self._sharding.axis, shards),
            all_reduces(shards, MEAN, self._sharding.replicas),
        )

    def _kept(self, group: WeightGroup, layer: int, made: tuple[int, ...]) -> Task:
        """Return the task that adds gradients to the whole ones of the micro-batches before."""
        kept = self._add(f"{group.name}:whole gradients", group.size_bytes, Role.ACCUMULATED, layer)
        task = self._copy(f"{group.name}:accumulate", Phase.BACKWARD, layer, made, (kept,))
        moved_bytes = task.moved_bytes + group.size_bytes
        return replace(task, reads=(*made, kept), creates=(), moved_bytes=moved_bytes, releases=made)

    def _added_to(self, shard: int) -> int:
        block = self._blocks[shard]
        name = f"{block.name} of a micro-batch"
        return self._add(name, block.size_bytes, Role.GRADIENT, block.layer, _REDUCED)

    def _accumulation(self, group: WeightGroup, layer: int, reduced: Sequence[int], shards: Sequence[int]) -> Task:
        """Return the task that adds a micro-batch's shards of gradients to those before."""
        task = self._copy(f"{group.name}:accumulate", Phase.BACKWARD, layer, (*reduced, *shards), shards)
        return replace(task, creates=(), releases=tuple(reduced))

    def _shard_of(self, name: str) -> int:
        value = self._gradients[name]
        assert value is not None
        return value.block

    def _tasks(self) -> Iterator[Task]:
        """Yield all tasks in order."""
        index = count()
        for task in self._graph.tasks:
            for added in self._before[task.index]:
                yield changed(added, index=next(index), releases=self._freed(added.releases))
            changes: dict[str, Any] = {"index": next(index)}
            if released := self._freed(self._released[task.index]):
                changes["releases"] = (*task.releases, *released)
            yield rename_blocks(task, self._renamed[task.phase in AFTER_THE_LOSS], **changes)
            for added in self._behind[task.index]:
                yield changed(added, index=next(index), releases=self._freed(added.releases))

    def _freed(self, blocks: Sequence[int]) -> tuple[int, ...]:
        return tuple(blocks) if self._graph.is_plain else ()

    def _copy(self, name: str, phase: Phase, layer: int, source: Sequence[int], target: Sequence[int]) -> Task:
        """Return a task of the device that copies blocks."""
        moved_bytes = sum(self._blocks[block].size_bytes for block in chain(source, target))
        return Task(
            -1, name, Kind.OTHER, phase, layer, reads=tuple(source), writes=tuple(target), creates=tuple(target),
            moved_bytes=moved_bytes, launches=min(1, moved_bytes),
        )  # fmt: skip

    def _collective(
        self,
        group: WeightGroup,
        phase: Phase,
        layer: int,
        reads: tuple[int, ...],
        creates: Sequence[int],
        collective: Collective,
        suffix: str = "",
    ) -> Task:
        name = f"{group.name}:{collective.kind.replace('_', '-')}{suffix}"
        return Task(
            -1, name, Kind.OTHER, phase, layer, reads=reads, writes=tuple(creates), creates=tuple(creates),
            collective=collective,
        )  # fmt: skip

    def _add(
        self, name: str, size_bytes: int, role: Role, layer: int, pool: str = "", repeats: int | None = None
    ) -> int:
        """Add a block, and return its index; other engines than torch's have one pool."""
        own_pool = pool if self._graph.is_plain else ""
        self._blocks.append(Block(len(self._blocks), name, size_bytes, role, layer, repeats=repeats, pool=own_pool))
        return len(self._blocks) - 1
