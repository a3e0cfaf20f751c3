"""The step without its regions of `torch.utils.checkpoint`: the backward pass reads what the forward pass has made.

    recorded:   a = f(x)   b = g(a)   ...   a' = f(x)   b' = g(a')   gradients read a', b'
    dissolved:  a = f(x)   b = g(a)   ...                            gradients read a, b

Contents are followed through the step. A task that runs again on equal contents makes equal contents, so a reader of a
copy reads the original instead, if that has not been overwritten by then. A repeated task stays where a copy is still
read: where its numbers differ (random numbers that are drawn anew, another operator), or where the original is gone.
What it does to the caller's blocks is done as before: batch norm updates its running statistics twice. So the results
are the same bits.
"""

from collections import defaultdict
from collections.abc import Hashable
from itertools import count
from typing import Any

from membench.core.graph.call import Call, ShapeOf, Value, signature, without_blocks
from membench.core.graph.changed_tasks import rename_blocks
from membench.core.graph.fused_calls import BATCH_NORMS
from membench.core.graph.task_graph import EXTERNAL_ROLES, RESULT_ROLES, Block, Task
from membench.core.libraries.random_operators import READ_STATE, SET_STATE

_STATE_OPERATORS = (READ_STATE, SET_STATE)


def dissolve(tasks: list[Task], blocks: list[Block]) -> list[Task]:
    """Return the tasks without those that repeat others for nothing."""
    copies = {block for task in tasks if task.is_recomputed for block in task.creates}
    if not copies:
        return tasks
    followed = _Followed(blocks, copies)
    for task in tasks:
        followed.run(task)
    needed = _needed(tasks, blocks, copies, followed, frozenset())
    if any(task.is_recomputed and task.random and not is_of_state(task) for task in needed):
        # they draw where all before them have drawn
        drawing = frozenset(task.index for task in tasks if task.random)
        return _needed(tasks, blocks, copies, followed, drawing)
    return [task for task in needed if not is_of_state(task)]


def is_of_state(task: Task) -> bool:
    """Return whether a task reads or sets the state of the random generator."""
    return task.call is not None and task.call.operator in _STATE_OPERATORS


class _Followed:
    """Follows the contents of all blocks through a step; equal numbers are equal contents.

    Attributes:
        originals: for each task the blocks that have the contents of copies that it reads, by copy.
        matched: repeated tasks that write nothing new.
    """

    def __init__(self, blocks: list[Block], copies: set[int]) -> None:
        self.originals: dict[int, dict[int, int]] = {}
        self.matched: set[int] = set()
        self._blocks, self._copies = blocks, copies
        self._contents = list(range(len(blocks)))
        self._numbers = count(len(blocks))
        self._holders: defaultdict[int, list[int]] = defaultdict(list)  # blocks that got these contents, by number
        self._written: dict[Hashable, tuple[int, ...]] = {}  # contents, by what they depend on
        self._state = next(self._numbers)  # of the random generator
        self._states: dict[int, int] = {}  # those that were read, by the block that holds them
        self._after: dict[Hashable, int] = {}  # states, by what was drawn at which state

    def run(self, task: Task) -> None:
        """Follow one task."""
        call = task.call
        assert call is not None, "recorded tasks have calls"
        if call.operator == READ_STATE:
            self._states[task.creates[0]] = self._state
        elif call.operator == SET_STATE:
            self._state = self._states[task.reads[0]]
        else:
            self._follow(task, call)

    def _follow(self, task: Task, call: Call) -> None:
        self.originals[task.index] = self._originals(task)
        depends = self._key(task, call)
        if depends in self._written and len(self._written[depends]) == len(task.writes):
            self.matched.add(task.index)
        else:
            self._written[depends] = tuple(next(self._numbers) for _ in task.writes)
        for block, number in zip(task.writes, self._written[depends], strict=True):
            # what a task does to the caller's blocks is done again
            self._contents[block] = next(self._numbers) if self._is_kept(block) else number
            if not self._is_kept(block) and block not in self._copies:
                self._holders[number].append(block)
        if task.random:
            drawn = self._state, signature(call.operator, call.args, call.kwargs)
            self._state = self._after.setdefault(drawn, next(self._numbers))

    def _is_kept(self, block: int) -> bool:
        return self._blocks[block].role in EXTERNAL_ROLES

    def _originals(self, task: Task) -> dict[int, int]:
        """Return by copy a block that has the same contents now, one of the copy's layer if there is one."""
        found = {}
        for block in (each for each in task.reads if each in self._copies):
            number, like = self._contents[block], self._blocks[block]
            holders = [each for each in self._holders[number] if self._contents[each] == number]
            holders = [each for each in holders if self._blocks[each].size_bytes == like.size_bytes]
            of_layer = [each for each in holders if self._blocks[each].layer == like.layer]
            if holders:
                found[block] = (of_layer or holders)[-1]
        return found

    def _key(self, task: Task, call: Call) -> Hashable:
        """Return what a task's results depend on."""
        arguments = call.args
        if call.operator in BATCH_NORMS and arguments[5]:  # in training its outputs do not depend on running statistics
            arguments = (*arguments[:3], *arguments[5:])
        state = self._state if task.random else None
        return call.operator, self._argument(arguments), self._argument(call.kwargs), state

    def _argument(self, argument: Any) -> Hashable:
        if isinstance(argument, Value):
            return self._contents[argument.block], argument.offset, without_blocks(argument)
        if isinstance(argument, ShapeOf):
            return "shape", without_blocks(argument.value)
        if isinstance(argument, tuple):
            return tuple(map(self._argument, argument))
        return type(argument), argument


def _needed(
    tasks: list[Task], blocks: list[Block], copies: set[int], followed: _Followed, drawing: frozenset[int]
) -> list[Task]:
    """Return the tasks that still have a purpose, with originals in place of copies.

    Args:
        drawing: tasks that are needed for the numbers that they draw.
    """
    wanted = {block for block in copies if blocks[block].role in RESULT_ROLES}
    kept: list[Task] = []
    for task in reversed(tasks):
        changes = any(block in wanted or block not in copies for block in task.writes)
        draws = task.index in drawing or (task.random and task.index not in followed.matched)
        if task.is_recomputed and not (changes or draws or is_of_state(task)):
            continue
        renamed = {
            copy: block
            for copy, block in followed.originals.get(task.index, {}).items()
            if copy not in task.writes and copy not in wanted
        }
        wanted.update(block for block in task.reads if block in copies and block not in renamed)
        kept.append(rename_blocks(task, renamed) if renamed else task)
    return kept[::-1]
