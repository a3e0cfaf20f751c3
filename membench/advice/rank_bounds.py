"""Lower bounds on the memory and the time of a rank, from the graph of one GPU: what cannot fit, or win, is not simulated."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil

from membench.core.collective import Collective, CollectiveKind
from membench.core.task_graph import AFTER_THE_LOSS, ARGUMENT_ROLES, Block, Phase, Role, Task, TaskGraph
from membench.cost.collectives import collective_time_s
from membench.cost.roofline import RooflineCost
from membench.planning.rewrite import join_convolution_backward
from membench.steps.ranks import Ranks


@dataclass(frozen=True)
class StepNumbers:
    """What each rank holds and computes for a number of samples, however weights are divided.

    Attributes:
        samples: of the step.
        kept_bytes: made in the forward pass for the backward pass, of samples; all of it is there at the loss.
        constant_bytes: the same, of weights alone, such as those that autocast has converted.
        compute_s: of all kernels, without the update.
        gathered_bytes: whole weights in the precision of products.
        reduced: gradients by weight: elements and bytes of each.
    """

    samples: int
    kept_bytes: int
    constant_bytes: int
    compute_s: float
    gathered: Mapping[str, int]
    reduced: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, graph: TaskGraph, cost: RooflineCost) -> "StepNumbers":
        """Return the numbers of a captured step as plain PyTorch runs it."""
        assert graph.plain is not None
        plain = join_convolution_backward(cost.annotate(graph.plain), cost)
        of_samples, constant = _kept(plain)
        computed = (task for task in plain.tasks if task.phase is not Phase.UPDATE and not task.on_host)
        return cls(
            samples=graph.batch_size,
            kept_bytes=plain.size_bytes(of_samples),
            constant_bytes=plain.size_bytes(constant),
            compute_s=sum(map(cost.task_time_s, computed)),
            gathered={block.name: block.size_bytes for block in _weights(plain)},
            reduced={
                name: (plain.blocks[value.block].size_bytes // value.dtype.itemsize, value.dtype.itemsize)
                for name, value in plain.gradients
                if value is not None
            },
        )

    def held_bytes(self, samples: int) -> float:
        """Return what is kept for another number of samples, in proportion to them."""
        return self.constant_bytes + self.kept_bytes / self.samples * samples


def _weights(graph: TaskGraph) -> Iterable[Block]:
    return (block for block in graph.blocks if block.role is Role.WEIGHT)


def _kept(graph: TaskGraph) -> tuple[list[int], list[int]]:
    """Return the blocks that are there at the loss: those that depend on samples, and the others."""
    of_samples = {block.index for block in graph.blocks if block.role in ARGUMENT_ROLES}
    made: list[int] = []
    for task in graph.tasks:
        if task.phase not in AFTER_THE_LOSS:
            made += task.creates
            if not of_samples.isdisjoint(task.reads):
                of_samples.update(task.writes)
    last_use = graph.last_use
    kept = [block for block in dict.fromkeys(made) if _is_after_the_loss(graph.tasks[last_use[block]])]
    return [block for block in kept if block in of_samples], [
        block for block in kept if block not in of_samples
    ]


def _is_after_the_loss(task: Task) -> bool:
    return task.phase in AFTER_THE_LOSS


def least_rank_bytes(numbers: StepNumbers, ranks: Ranks, states_bytes: float, samples: int) -> int:
    """Return the least that a rank holds at the loss.

    Args:
        states_bytes: a lower bound on its weights and optimizer's states.
        samples: of the micro-batch.
    """
    sharding = ranks.sharding
    gathered = sum(numbers.gathered.values()) if sharding and not sharding.reshard_after_forward else 0
    return int(states_bytes + numbers.held_bytes(samples) + gathered)


def least_step_time_s(numbers: StepNumbers, ranks: Ranks) -> float:
    """Return the least time of a rank's step.

    A micro-batch's kernels run one after another, and a running collective lengthens the next kernel (`SimulatedBackend`), but for the
    last collectives, behind which none follows; and the collectives of an axis run one after another.
    """
    by_axis, last_s = communication_s(numbers, ranks)
    share = ranks.mesh.cluster.collective_share
    computed_s = numbers.compute_s + share * max(0.0, sum(by_axis.values()) - last_s)
    return ranks.accumulate * max(computed_s, *by_axis.values(), 0.0)


def communication_s(numbers: StepNumbers, ranks: Ranks) -> tuple[dict[str, float], float]:
    """Return the seconds of a micro-batch's collectives on each axis of data parallelism, and those behind the last kernel."""
    by_axis: dict[str, float] = dict.fromkeys((name for name, _ in ranks.mesh.axes), 0.0)
    last_s = 0.0
    for found in _collectives(numbers, ranks):
        of_group = [(each.axis, _time_s(ranks, each)) for each in found]
        for axis, time_s in of_group:
            by_axis[axis] += time_s
        last_s = max(last_s, sum(time_s for _, time_s in of_group))
    return by_axis, 2 * last_s


def _time_s(ranks: Ranks, collective: Collective) -> float:
    mesh = ranks.mesh
    return collective_time_s(mesh.cluster, mesh.group(collective.axis), collective)


def _collectives(numbers: StepNumbers, ranks: Ranks) -> Iterable[list[Collective]]:
    """Yield the collectives of each group of weights that are gathered together, the root's last."""
    sharding = ranks.sharding
    if sharding is None:
        whole = sum(elements * itemsize for elements, itemsize in numbers.reduced.values())
        yield [Collective(CollectiveKind.ALL_REDUCE, whole, axis) for axis, _ in ranks.mesh.axes]
        return
    grouped = {name for names in sharding.groups for name in names}
    root = [name for name in numbers.gathered if name not in grouped]
    for names in (*sharding.groups, root):
        gathered = sum(numbers.gathered.get(name, 0) for name in names)
        gathers = 1 if names is root or not sharding.reshard_after_forward else 2
        reduced = [numbers.reduced[name] for name in names if name in numbers.reduced]
        elements = sum(number for number, _ in reduced)
        itemsize = max(
            (sharding.reduce_dtype.itemsize if sharding.reduce_dtype else each for _, each in reduced),
            default=0,
        )
        found = [Collective(CollectiveKind.ALL_GATHER, gathered, sharding.axis)] * gathers
        if reduced:
            found.append(Collective(CollectiveKind.REDUCE_SCATTER, elements * itemsize, sharding.axis))
            if sharding.replicas:
                shard = ceil(elements / sharding.ranks) * (
                    sharding.kept_dtype.itemsize if sharding.kept_dtype else itemsize
                )
                found.append(Collective(CollectiveKind.ALL_REDUCE, shard, sharding.replicas))
        yield found
