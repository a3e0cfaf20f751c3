"""A rank's step under data parallelism: buckets of gradients are averaged during the backward pass.

    backward n | all-reduce bucket 1, backward n - 1 | all-reduce bucket 2, ...     copy out all buckets

As torch's DistributedDataParallel has it (Li et al., "PyTorch Distributed", VLDB 2020, Section 3.2): gradients fill
buckets in the order in which they are complete, each divided by the number of replicas and added up as soon as it is
full, and the means are copied back at the end.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from membench.core.graph.call import Call, Value
from membench.core.graph.changed_tasks import numbered
from membench.core.graph.collective import Collective, CollectiveKind
from membench.core.graph.task_graph import Block, Kind, Phase, Role, Task, TaskGraph
from membench.planning.parallel.collective_calls import SUM, all_reduces, copies, flat, multiplies

BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = 1 << 20
"""``bucket_cap_mb`` of DistributedDataParallel, and the size of its first bucket, which is to begin early."""


def replicate(
    graph: TaskGraph, axis: str, ranks: int, *, first_bytes: int = FIRST_BUCKET_BYTES, bucket_bytes: int = BUCKET_BYTES
) -> TaskGraph:
    """Return the graph of a rank, whose gradients are averaged over the ranks of an axis.

    Args:
        first_bytes, bucket_bytes: from which on the first bucket, and each other one, is full.
    """
    return graph.map(lambda each: _replicated(each, axis, ranks, list(_buckets(each, first_bytes, bucket_bytes))))


def _replicated(graph: TaskGraph, axis: str, ranks: int, buckets: Sequence[Sequence[Value]]) -> TaskGraph:
    blocks = list(graph.blocks)
    behind: defaultdict[int, list[Task]] = defaultdict(list)
    copies_out = []
    for number, values in enumerate(buckets):
        bucket, name = len(blocks), f"bucket {number}"
        gradients = tuple(value.block for value in values)
        size_bytes = graph.size_bytes(gradients)
        blocks.append(Block(bucket, name, size_bytes, Role.ACCUMULATED, layer=-1))
        ready = max(graph.last_use[block] for block in gradients)
        task = Task(
            -1, f"{name}:copy in", Kind.OTHER, Phase.BACKWARD, graph.tasks[ready].layer, reads=gradients,
            writes=(bucket,),
            creates=(), moved_bytes=2 * size_bytes,
        )  # fmt: skip
        exchanged = Collective(CollectiveKind.ALL_REDUCE, size_bytes, axis)
        calls = _calls(graph, bucket, values, axis, ranks)
        behind[ready] += [
            replace(task, call=calls[0]),
            replace(task, name=f"{name}:divide", reads=(bucket,), call=calls[1]),
            replace(
                task, name=f"{name}:all-reduce", reads=(bucket,), moved_bytes=0, collective=exchanged, call=calls[2]
            ),
        ]
        copies_out.append(replace(task, name=f"{name}:copy out", reads=(bucket,), writes=gradients, call=calls[3]))
    behind[len(graph.tasks) - 1] += copies_out
    tasks = (each for task in graph.tasks for each in (task, *behind[task.index]))
    return replace(graph, blocks=tuple(blocks), tasks=numbered(tasks))


def _calls(
    graph: TaskGraph, bucket: int, gradients: Sequence[Value], axis: str, ranks: int
) -> tuple[Call | None, Call | None, Call | None, Call | None]:
    """Return the calls that copy gradients in, divide, add up and copy out; None where only simulated."""
    elements = [graph.blocks[value.block].size_bytes // value.dtype.itemsize for value in gradients]
    if len({value.dtype for value in gradients}) > 1:
        return None, None, None, None
    dtype = gradients[0].dtype
    views, offset = [], 0
    for value, count in zip(gradients, elements, strict=True):
        views.append(replace(value, block=bucket, offset=offset))
        offset += count
    whole = flat(bucket, dtype, offset)
    return (
        copies(gradients, views),
        multiplies(whole, 1 / ranks),
        all_reduces(whole, SUM, axis),
        copies(views, gradients),
    )


def _buckets(graph: TaskGraph, first_bytes: int, bucket_bytes: int) -> Iterator[list[Value]]:
    """Yield the gradients of each bucket, in the order in which they are complete."""
    gradients = {name: value for name, value in graph.gradients if value is not None}
    bucket: list[Value] = []
    most_bytes = first_bytes
    for gradient in filter(None, map(gradients.get, graph.completed)):
        bucket.append(gradient)
        if graph.size_bytes(value.block for value in bucket) >= most_bytes:
            yield bucket
            bucket, most_bytes = [], bucket_bytes
    if bucket:
        yield bucket
