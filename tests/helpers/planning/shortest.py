"""The least seconds of recomputation of a chain within a budget, by search over all states."""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from math import inf

from hypothesis import strategies as st

from membench.core.errors import InfeasibleSchedule
from membench.core.graph.schedule import Offload
from membench.steps.plan import plan
from membench.strategies.base import Strategy
from tests.helpers.planning.chains import INPUT_BYTES, chain_of_sizes
from tests.helpers.planning.costs import CostOfLayers, UnitCost, forward_s

State = tuple[int, frozenset[int]]
"""The number of backward tasks that have run, and the layers whose activations are held."""


def chains(longest: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Draw the bytes and the seconds of each layer of a chain."""
    return st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=2, max_size=longest)


def check_free(strategy: Strategy) -> None:
    """Assert that nothing is recomputed within eager's peak or without a budget."""
    graph = chain_of_sizes([3, 1, 4, 1, 5])
    free = plan(graph, strategy, UnitCost(), None)
    assert plan(graph, strategy, UnitCost(), free.peak_bytes).graph == free.graph == graph


def check_shortest(
    strategy: Strategy, layers: Sequence[tuple[int, int]], share: float, *, times_longer: float = 1.0
) -> None:
    """Assert that a search over all orders finds none that is faster within a budget, and none where it is refused.

    Args:
        layers: bytes and seconds of each.
        share: where the budget is between the least of the graph and eager's peak.
        times_longer: how much longer than that order the strategy's may take.
    """
    sizes, times = [size for size, _ in layers], [float(time) for _, time in layers]
    graph, cost = chain_of_sizes(sizes), CostOfLayers(times)
    peak_bytes = plan(graph, strategy, cost, None).peak_bytes
    lowest_bytes = graph.lower_bound_bytes
    budget_bytes = round(lowest_bytes + share * (peak_bytes - lowest_bytes))
    expected_s = least_recomputing_s(sizes, times, budget_bytes - INPUT_BYTES)
    try:
        schedule = plan(graph, strategy, cost, budget_bytes)
    except InfeasibleSchedule:
        assert expected_s == inf
        return
    assert not any(isinstance(instruction, Offload) for instruction in schedule.instructions)
    assert expected_s - 1e-6 <= forward_s(schedule, cost) <= times_longer * expected_s + 1e-6


def least_recomputing_s(sizes: Sequence[int], forward_s: Sequence[float], room_bytes: int) -> float:
    """Return the seconds of all forward tasks in the fastest order of `chains.chain_of_sizes`; infinite: none fits.

    Args:
        sizes: bytes of the activations.
        forward_s: seconds of each layer's forward task.
        room_bytes: size of activations and gradients together.
    """
    start: State = (0, frozenset())
    best = {start: 0.0}
    queue: list[tuple[float, int, State]] = [(0.0, 0, start)]
    pushed = 0
    while queue:
        seconds, _, state = heappop(queue)
        if state[0] == len(sizes) + 1:
            return seconds
        if seconds > best[state]:
            continue
        for added_s, following in _next(state, sizes, forward_s, room_bytes):
            if seconds + added_s < best.get(following, inf):
                best[following] = seconds + added_s
                pushed += 1
                heappush(queue, (seconds + added_s, pushed, following))
    return inf


def _next(
    state: State, sizes: Sequence[int], forward_s: Sequence[float], room_bytes: int
) -> Iterator[tuple[float, State]]:
    done, held = state
    last = len(sizes) - done  # the layer whose gradient is held, if any backward task has run
    held_bytes = sum(sizes[layer] for layer in held)
    gradient_bytes = sizes[last] if done else 0
    for layer in held:
        yield 0.0, (done, held - {layer})
    for layer in range(len(sizes)):
        can_run = layer not in held and (layer == 0 or layer - 1 in held)
        if can_run and held_bytes + sizes[layer] + gradient_bytes <= room_bytes:
            yield forward_s[layer], (done, held | {layer})
    read = len(sizes) - 1 - done  # the layer whose activation the next backward task reads
    created_bytes = sizes[read] if read >= 0 else 0
    if (read < 0 or read in held) and held_bytes + gradient_bytes + created_bytes <= room_bytes:
        yield 0.0, (done + 1, held)
