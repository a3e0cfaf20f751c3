"""An update that replicas divide: each updates its part, holds its states alone, and gets the others' weights.

    backward, gradients averaged in buckets | update of the own weights | all-gather of all weights

A rank's own weights are read by the all-gather and not written. So a method may have them at home in host memory, with
their states and their update (ZeRO-1 and 2 with an offloaded optimizer); the others' stay on the device, where they
arrive.

As torch's ``ZeroRedundancyOptimizer`` around DistributedDataParallel (ZeRO stage 1, Rajbhandari et al. 2020, Section
5.1): whole weights go, from the largest on, to the rank that has the least yet. Its broadcasts, one from each rank, are
one all-gather here. Stage 2 and 3 are shards (`membench.planning.parallel.sharding`), with `reshard_after_forward` off
and on.
"""

from collections.abc import Mapping
from dataclasses import replace

from membench.core.graph.call import Value
from membench.core.graph.collective import Collective, CollectiveKind
from membench.core.graph.task_graph import Role, TaskGraph
from membench.core.step.optimizer import Update, UpdateOf, UpdateTask


def partitioned(update_of: UpdateOf, axis: str, ranks: int) -> UpdateOf:
    """Return the update of the rank with the most weights.

    Args:
        update_of: all weights.
        axis: the replicas' axis.
    """

    def of_rank(graph: TaskGraph) -> Update:
        gradients = {name: value for name, value in graph.gradients if value is not None}
        sizes = {name: graph.blocks[value.block].size_bytes for name, value in gradients.items()}
        own = _largest_part(sizes, ranks)
        update = update_of(replace(graph, gradients=_of(gradients, own)))
        weights = tuple(block.name for block in graph.blocks if block.role is Role.WEIGHT and block.name in sizes)
        gathered = UpdateTask(
            weights,
            uses_gradients=False,
            collective=Collective(CollectiveKind.ALL_GATHER, _weight_bytes(graph, weights), axis),
            sent=own,
        )
        parts = () if update.parts is update.tasks else (*update.parts, gathered)
        return replace(update, tasks=(*update.tasks, gathered), parts=parts)

    return of_rank


def _largest_part(sizes: Mapping[str, int], ranks: int) -> frozenset[str]:
    """Return the weights of the rank with the most bytes, by ``ZeroRedundancyOptimizer._partition_parameters``."""
    parts: list[list[str]] = [[] for _ in range(ranks)]
    held = [0] * ranks
    for name in sorted(sizes, key=lambda name: sizes[name], reverse=True):
        least = held.index(min(held))
        parts[least].append(name)
        held[least] += sizes[name]
    return frozenset(parts[held.index(max(held))])


def _of(gradients: Mapping[str, Value], names: frozenset[str]) -> tuple[tuple[str, Value], ...]:
    return tuple((name, value) for name, value in gradients.items() if name in names)


def _weight_bytes(graph: TaskGraph, names: tuple[str, ...]) -> int:
    return sum(block.size_bytes for block in graph.blocks if block.role is Role.WEIGHT and block.name in names)
