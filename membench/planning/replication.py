"""A step of one rank under data parallelism: buckets of gradients are averaged over replicas while the backward pass goes on.

    backward n | all-reduce bucket 1, backward n - 1 | all-reduce bucket 2, ...     copy out all buckets

As torch's DistributedDataParallel has it (Li et al., "PyTorch Distributed", VLDB 2020, Section 3.2): gradients fill buckets in the
order in which they are complete, each bucket is averaged as soon as it is full, and the means are copied back at the end.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from membench.core.collective import Collective, CollectiveKind
from membench.core.task_graph import Block, Kind, Phase, Role, Task, TaskGraph, numbered

BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = 1 << 20
"""``bucket_cap_mb`` of DistributedDataParallel, and the size of its first bucket, which is to begin early."""


def replicate(graph: TaskGraph, axis: str) -> TaskGraph:
    """Return the graph of a rank, whose gradients are averaged over the ranks of an axis."""
    return replace(_replicated(graph, axis), plain=graph.plain and _replicated(graph.plain, axis))


def _replicated(graph: TaskGraph, axis: str) -> TaskGraph:
    blocks = list(graph.blocks)
    behind: defaultdict[int, list[Task]] = defaultdict(list)
    copies_out = []
    for number, gradients in enumerate(_buckets(graph)):
        bucket, name = len(blocks), f"bucket {number}"
        size_bytes = graph.size_bytes(gradients)
        blocks.append(Block(bucket, name, size_bytes, Role.ACCUMULATED, layer=-1))
        ready = max(graph.last_use[block] for block in gradients)
        task = Task(
            -1, f"{name}:copy in", Kind.OTHER, Phase.BACKWARD, graph.tasks[ready].layer, reads=gradients, writes=(bucket,),
            creates=(), moved_bytes=2 * size_bytes,
        )  # fmt: skip
        exchanged = Collective(CollectiveKind.ALL_REDUCE, size_bytes, axis)
        averaged = replace(
            task, name=f"{name}:all-reduce", reads=(bucket,), moved_bytes=0, collective=exchanged
        )
        behind[ready] += [task, averaged]
        copies_out.append(replace(task, name=f"{name}:copy out", reads=(bucket,), writes=gradients))
    behind[len(graph.tasks) - 1] += copies_out
    tasks = (each for task in graph.tasks for each in (task, *behind[task.index]))
    return replace(graph, blocks=tuple(blocks), tasks=numbered(tasks))


def _buckets(graph: TaskGraph) -> Iterator[tuple[int, ...]]:
    """Yield the gradients of each bucket, in the order in which they are complete."""
    gradients = {value.block for _, value in graph.gradients if value is not None}
    bucket: list[int] = []
    most_bytes = FIRST_BUCKET_BYTES
    for gradient in sorted(gradients, key=lambda block: graph.last_use[block]):
        bucket.append(gradient)
        if graph.size_bytes(bucket) >= most_bytes:
            yield tuple(bucket)
            bucket, most_bytes = [], BUCKET_BYTES
    if bucket:
        yield tuple(bucket)
