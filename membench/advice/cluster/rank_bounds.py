"""Lower bounds on a rank's memory and time from one GPU's graph: what cannot fit or win is not simulated."""

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from math import ceil
from statistics import mean

from membench.advice.cluster.step_numbers import PassNumbers, PlaceNumbers, StepNumbers
from membench.core.graph.collective import Collective, CollectiveKind
from membench.core.hardware.mesh import Mesh
from membench.core.step.pipeline import Action, ActionKind, Pipeline
from membench.core.step.sharding import REPLICATED, Sharding
from membench.cost.collectives import collective_time_s
from membench.steps.parallel.ranks import Ranks


def rank_states_bytes(
    weights: Mapping[str, int], states: Mapping[str, int], trained: Container[str], parts: int
) -> dict[str, float]:
    """Return the least that a rank with a weight holds of it and of its optimizer's states, in the module's precision.

    Args:
        weights, states: bytes of whole weights, and of the optimizer's states of each.
        trained: the weights that are updated; others have no states.
        parts: ranks that divide them. Some weights are not divided, or are padded, so that no rank has less.
    """
    return {
        name: (size_bytes + (states.get(name, 0) if name in trained else 0)) / parts
        for name, size_bytes in weights.items()
    }


def least_rank_bytes(numbers: StepNumbers, ranks: Ranks, states: Mapping[str, float], gradients_bytes: float) -> int:
    """Return the least that the fullest rank holds.

    Args:
        states: what `rank_states_bytes` returns. A rank of a pipeline has those of the weights that its stage uses.
        gradients_bytes: a lower bound on a rank's gradients behind the backward pass.
    """
    if ranks.pipeline is not None:
        stages = range(ranks.pipeline.stages)
        own = [_weights_of_stage(numbers, ranks.pipeline, stage) for stage in stages]
        made = [_made_bytes(numbers, ranks, stage, own[stage]) for stage in stages]
        held = [_weights_bytes(numbers, ranks, own[stage], states) + made[stage] for stage in stages]
        # a weight that no stage is known to use is on some rank too: the mean over ranks is another bound
        return int(max(*held, sum(states.values()) / len(stages) + mean(made)))
    sharding = ranks.sharding
    gathered = sum(numbers.gathered.values()) if sharding and not sharding.reshard_after_forward else 0
    return int(sum(states.values()) + max(numbers.kept_bytes() + gathered, gradients_bytes))


def _weights_of_stage(numbers: StepNumbers, pipeline: Pipeline, stage: int) -> list[str]:
    first, last = _ends(numbers, pipeline)[stage]
    return [name for name, place in numbers.at.items() if first <= place < last]


def _made_bytes(numbers: StepNumbers, ranks: Ranks, stage: int, own: Iterable[str]) -> float:
    """Return the least that a pipeline's rank holds when the first backward pass begins, or when it has ended (1F1B).

    It holds what is kept of as many micro-batches as ranks follow it, and its own, and whole weights, which stay;
    behind the backward pass whole gradients too, which are added up over micro-batches, but one micro-batch less if
    that was the last. Those of a single micro-batch are given back one by one where shards are kept of them.

    Args:
        own: the weights that its stage uses.
    """
    pipeline, sharding = ranks.pipeline, ranks.sharding
    assert pipeline is not None
    first, last = _ends(numbers, pipeline)[stage]
    whole = sum(numbers.gathered[name] for name in own) if sharding else 0
    are_added_up = sharding is None or pipeline.micro_batches > 1
    makes_totals = numbers.places[first:last] if are_added_up else ()
    gradients = sum(_total_bytes(place, pipeline) for place in makes_totals)
    begun, ended = (
        numbers.kept_bytes(slice(first, last), min(pipeline.stages - stage, pipeline.micro_batches - done))
        for done in (0, 1)
    )
    return whole + max(begun, ended + gradients)


def _total_bytes(place: PlaceNumbers, pipeline: Pipeline) -> int:
    """Return the bytes of a place's gradients, added up over micro-batches."""
    dtype = pipeline.gradient_dtype
    return place.gradient_elements * dtype.itemsize if dtype else place.gradient_bytes


def _weights_bytes(numbers: StepNumbers, ranks: Ranks, names: Iterable[str], states: Mapping[str, float]) -> float:
    """Return the least that a rank holds of some weights and their states from the beginning of a step to its end.

    Where no states are known, weights are at least in the precision of the products.
    """
    shards = ranks.sharding.ranks if ranks.sharding else 1
    in_products = sum(numbers.gathered[name] for name in names) / shards
    return max(in_products, sum(states.get(name, 0.0) for name in names))


def _ends(numbers: StepNumbers, pipeline: Pipeline) -> list[tuple[int, int]]:
    """Return the first place of each stage of a pipeline, and the first one behind it."""
    begins = [numbers.blocks.index(name) + 1 for name in pipeline.begins]
    return list(pairwise([0, *begins, len(numbers.places)]))


def least_step_time_s(numbers: StepNumbers, ranks: Ranks) -> float:
    """Return the least time of a rank's step.

    A micro-batch's kernels run one after another, and a running collective lengthens the next kernel
    (`SimulatedBackend`), but for the last collectives, behind which none follows; and the collectives of an axis run
    one after another. A rank of a pipeline waits for what its neighbours make.
    """
    if ranks.pipeline is not None:
        places = [numbers.places[first:last] for first, last in _ends(numbers, ranks.pipeline)]
        stages = tuple(
            (
                _of_stage([place.forward for place in each]),
                _of_stage([place.backward for place in reversed(each)]),
                _sums_s(each, ranks.pipeline, numbers.byte_s),
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


def _sums_s(places: Sequence[PlaceNumbers], pipeline: Pipeline, byte_s: float) -> float:
    """Return the least seconds that sums of gradients add to a stage's backward pass of any micro-batch but the first.

    A micro-batch's gradients are read, and the totals of those before read and written, perhaps where kernels wait for
    a collective.
    """
    moved_bytes = sum(place.gradient_bytes + 2 * _total_bytes(place, pipeline) for place in places)
    return max(0.0, moved_bytes * byte_s - sum(place.waits_s for place in places))


@cache
def _pipelined_s(pipeline: Pipeline, stages: tuple[tuple[PassNumbers, PassNumbers, float], ...]) -> float:
    """Return when the last rank of a pipeline ends, whose stages do nothing but their forward and backward passes.

    Args:
        stages: the passes of each, and its `_sums_s`. Where among a pass's kernels they are is left open: they keep the
            rank busy, and delay no message of that pass.
    """
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
                forward, backward, sums_s = stages[action.stage]
                of = forward if is_forward else backward
                head_s = 0.0 if is_first else of.head_s
                begins_s = ends_s[rank] + head_s if is_first else max(ends_s[rank] + head_s, sent_s[before])
                passed_s = begins_s + of.total_s - head_s
                sent_s[action] = max(begins_s, passed_s - of.tail_s)
                has_sums = not is_forward and action.micro_batch > 0
                ends_s[rank] = max(passed_s, ends_s[rank] + of.total_s + (sums_s if has_sums else 0.0))
                actions.popleft()
    return max(ends_s)


def communication_s(numbers: StepNumbers, ranks: Ranks) -> tuple[dict[str, float], float]:
    """Return a micro-batch's seconds of collectives by axis of data parallelism, and those behind the last kernel."""
    by_axis: dict[str, float] = {}
    last_s = 0.0
    for sharding in (ranks.sharding, *([ranks.experts] if ranks.experts else ())):
        longest_s = 0.0
        for found in _collectives(numbers, ranks.mesh, sharding):
            of_group = [(each.axis, _time_s(ranks.mesh, each)) for each in found]
            for axis, time_s in of_group:
                by_axis[axis] = by_axis.get(axis, 0.0) + time_s
            longest_s = max(longest_s, sum(time_s for _, time_s in of_group))
        last_s += 2 * longest_s
    return by_axis, last_s


@cache
def _time_s(mesh: Mesh, collective: Collective) -> float:
    """Return the seconds of a collective, of which a network's blocks have equal ones."""
    return collective_time_s(mesh.cluster, mesh.group(collective.axis), collective)


def _collectives(numbers: StepNumbers, mesh: Mesh, sharding: Sharding | None) -> Iterable[list[Collective]]:
    """Yield the collectives of each group of weights that are gathered together, the root's last."""
    if sharding is None:
        whole = sum(elements * itemsize for elements, itemsize in numbers.reduced.values())
        if REPLICATED in mesh.sizes:
            yield [Collective(CollectiveKind.ALL_REDUCE, whole, REPLICATED)]
        return
    grouped = {name for names in sharding.groups for name in names}
    members = numbers.gathered if sharding.members is None else sharding.members
    root = [name for name in numbers.gathered if name in members and name not in grouped]
    kept = {name: dtype.itemsize for name, dtype in sharding.kept_dtypes}
    for names in (*sharding.groups, root):
        gathered = sum(numbers.gathered.get(name, 0) for name in names)
        gathers = 1 if names is root or not sharding.reshard_after_forward else 2
        reduced = {name: numbers.reduced[name] for name in names if name in numbers.reduced}
        elements = sum(number for number, _ in reduced.values())
        itemsize = max(
            (sharding.reduce_dtype.itemsize if sharding.reduce_dtype else each for _, each in reduced.values()),
            default=0,
        )
        found = [Collective(CollectiveKind.ALL_GATHER, gathered, sharding.axis)] * gathers
        if reduced:
            found.append(Collective(CollectiveKind.REDUCE_SCATTER, elements * itemsize, sharding.axis))
            if sharding.replicas:
                whole = sum(number * kept.get(name, own) for name, (number, own) in reduced.items())
                everywhere = ceil(whole / sharding.ranks)
                found.append(Collective(CollectiveKind.ALL_REDUCE, everywhere, sharding.replicas))
        yield found
