"""Lower bounds on the memory and the time of a rank, from the graph of one GPU: what cannot fit, or win, is not simulated."""

from collections import deque
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from math import ceil

from membench.advice.step_numbers import PassNumbers, StepNumbers
from membench.core.collective import Collective, CollectiveKind
from membench.core.mesh import Mesh
from membench.core.pipeline import Action, ActionKind, Pipeline
from membench.core.sharding import REPLICATED
from membench.cost.collectives import collective_time_s
from membench.steps.ranks import Ranks


def least_rank_bytes(numbers: StepNumbers, ranks: Ranks, states_bytes: float, gradients_bytes: float) -> int:
    """Return the least that the fullest rank holds.

    Args:
        states_bytes: a lower bound on its weights and optimizer's states: in a pipeline the mean over its ranks.
        gradients_bytes: the same, of its gradients behind the backward pass.
    """
    if ranks.pipeline is not None:
        held = [_held_under_way_bytes(numbers, ranks, stage) for stage in range(ranks.pipeline.stages)]
        return int(max(*held, states_bytes + sum(held) / len(held) - _weights_bytes(numbers, ranks)))
    sharding = ranks.sharding
    gathered = sum(numbers.gathered.values()) if sharding and not sharding.reshard_after_forward else 0
    return int(states_bytes + max(numbers.kept_bytes() + gathered, gradients_bytes))


def _held_under_way_bytes(numbers: StepNumbers, ranks: Ranks, stage: int) -> float:
    """Return the least that a rank of a pipeline holds when it begins the first backward pass, or when it has ended it (1F1B).

    It holds what is kept of as many micro-batches as ranks follow it, and its own, and whole weights, which stay; behind the backward
    pass whole gradients too, which are added up over micro-batches, but one micro-batch less if that was the last.
    """
    pipeline, sharding = ranks.pipeline, ranks.sharding
    assert pipeline is not None
    first, last = _ends(numbers, pipeline)[stage]
    own = [name for name, place in numbers.at.items() if first <= place < last]
    whole = sum(numbers.gathered[name] for name in own) if sharding else 0
    reduced = [numbers.reduced[name] for name in own if name in numbers.reduced]
    dtype = pipeline.gradient_dtype
    gradients = sum(elements * (dtype.itemsize if dtype else itemsize) for elements, itemsize in reduced)
    begun, ended = (
        numbers.kept_bytes(slice(first, last), min(pipeline.stages - stage, pipeline.micro_batches - done))
        for done in (0, 1)
    )
    return _weights_bytes(numbers, ranks, own) + whole + max(begun, ended + gradients)


def _weights_bytes(numbers: StepNumbers, ranks: Ranks, names: Iterable[str] | None = None) -> float:
    """Return the least bytes of weights as a rank has them, in the precision of the products; of all: the mean over stages."""
    stages = ranks.pipeline.stages if ranks.pipeline else 1
    shards = ranks.sharding.ranks if ranks.sharding else 1
    if names is None:
        return sum(numbers.gathered.values()) / stages / shards
    return sum(numbers.gathered[name] for name in names) / shards


def _ends(numbers: StepNumbers, pipeline: Pipeline) -> list[tuple[int, int]]:
    """Return the first place of each stage of a pipeline, and the first one behind it."""
    begins = [numbers.blocks.index(name) + 1 for name in pipeline.begins]
    return list(pairwise([0, *begins, len(numbers.places)]))


def least_step_time_s(numbers: StepNumbers, ranks: Ranks) -> float:
    """Return the least time of a rank's step.

    A micro-batch's kernels run one after another, and a running collective lengthens the next kernel (`SimulatedBackend`), but for the
    last collectives, behind which none follows; and the collectives of an axis run one after another. A rank of a pipeline waits for what
    its neighbours make.
    """
    if ranks.pipeline is not None:
        places = [numbers.places[first:last] for first, last in _ends(numbers, ranks.pipeline)]
        stages = tuple(
            (
                _of_stage([place.forward for place in each]),
                _of_stage([place.backward for place in reversed(each)]),
            )
            for each in places
        )
        return _pipelined_s(ranks.pipeline, stages)
    by_axis, last_s = communication_s(numbers, ranks)
    share = ranks.mesh.cluster.collective_share
    lengthened_s = share * max(0.0, sum(by_axis.values()) - last_s)
    computed_s = numbers.total("kernels_s") + max(numbers.total("waits_s"), lengthened_s)
    return ranks.accumulate * max(computed_s, *by_axis.values(), 0.0)


def _of_stage(places: Sequence[PassNumbers]) -> PassNumbers:
    """Return the numbers of places that a pass goes through, one after another."""
    return PassNumbers(sum(each.total_s for each in places), places[0].head_s, places[-1].tail_s)


@cache
def _pipelined_s(pipeline: Pipeline, stages: tuple[tuple[PassNumbers, PassNumbers], ...]) -> float:
    """Return when the last rank of a pipeline ends, of which each stage does no more than its forward and its backward passes."""
    ranks = [deque(pipeline.actions(rank)) for rank in range(pipeline.ranks)]
    ends_s = [0.0] * pipeline.ranks
    sent_s: dict[Action, float] = {}
    while any(ranks):
        for rank, actions in enumerate(ranks):
            while actions:
                action = actions[0]
                is_forward = action.kind is ActionKind.FORWARD
                before = action._replace(stage=action.stage + (-1 if is_forward else 1))
                is_first = not 0 <= before.stage < len(stages)
                if not is_first and before not in sent_s:
                    break
                of = stages[action.stage][0 if is_forward else 1]
                head_s = 0.0 if is_first else of.head_s
                begins_s = ends_s[rank] + head_s if is_first else max(ends_s[rank] + head_s, sent_s[before])
                ends_s[rank] = begins_s + of.total_s - head_s
                sent_s[action] = max(begins_s, ends_s[rank] - of.tail_s)
                actions.popleft()
    return max(ends_s)


def communication_s(numbers: StepNumbers, ranks: Ranks) -> tuple[dict[str, float], float]:
    """Return the seconds of a micro-batch's collectives on each axis of data parallelism, and those behind the last kernel."""
    by_axis: dict[str, float] = {}
    last_s = 0.0
    for found in _collectives(numbers, ranks):
        of_group = [(each.axis, _time_s(ranks.mesh, each)) for each in found]
        for axis, time_s in of_group:
            by_axis[axis] = by_axis.get(axis, 0.0) + time_s
        last_s = max(last_s, sum(time_s for _, time_s in of_group))
    return by_axis, 2 * last_s


@cache
def _time_s(mesh: Mesh, collective: Collective) -> float:
    """Return the seconds of a collective, of which a network's blocks have equal ones."""
    return collective_time_s(mesh.cluster, mesh.group(collective.axis), collective)


def _collectives(numbers: StepNumbers, ranks: Ranks) -> Iterable[list[Collective]]:
    """Yield the collectives of each group of weights that are gathered together, the root's last."""
    sharding = ranks.sharding
    if sharding is None:
        whole = sum(elements * itemsize for elements, itemsize in numbers.reduced.values())
        if REPLICATED in ranks.mesh.sizes:
            yield [Collective(CollectiveKind.ALL_REDUCE, whole, REPLICATED)]
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
