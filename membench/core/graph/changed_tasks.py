"""Tasks like others, with some attributes changed."""

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

from membench.core.graph.call import on_blocks
from membench.core.graph.task_graph import Task


def changed(task: Task, **changes: Any) -> Task:
    """Return what `dataclasses.replace` returns, sooner: predictions change tasks a million times."""
    new = object.__new__(Task)
    for name, value in zip(_ATTRIBUTES, _attributes(task), strict=True):
        object.__setattr__(new, name, value)
    for name, value in changes.items():
        object.__setattr__(new, name, value)
    return new


_ATTRIBUTES = tuple(Task.__dataclass_fields__)
_attributes = attrgetter(*_ATTRIBUTES)


def numbered(tasks: Iterable[Task]) -> tuple[Task, ...]:
    """Return tasks with their positions as indices."""
    return tuple(task if task.index == index else changed(task, index=index) for index, task in enumerate(tasks))


def rename_blocks(task: Task, renamed: Mapping[int, int], **changes: Any) -> Task:
    """Return the task with blocks replaced, in its call as well, and with other attributes changed."""
    own = {block: renamed[block] for block in (*task.reads, *task.writes) if block in renamed}
    if not own:
        return changed(task, **changes) if changes else task
    for name in ("reads", "writes", "creates"):
        blocks = [own.get(block, block) for block in getattr(task, name)]
        changes[name] = tuple(dict.fromkeys(blocks))
    if task.call is not None:
        changes["call"] = on_blocks(task.call, own)
    return changed(task, **changes)
