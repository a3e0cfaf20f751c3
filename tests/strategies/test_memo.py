"""MEMO: what of each layer leaves, hidden behind its forward pass and within host memory, and what is recomputed."""

from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.models.vision_transformer import VisionTransformer

from membench.core.graph.schedule import Offload, Schedule
from membench.core.graph.task_graph import Kind, TaskGraph
from membench.core.hardware.machine import HostLimit
from membench.planning.choices.problem import OFFLOAD, RECOMPUTE
from membench.steps.plan import plan
from membench.strategies.chain.stages import Chain
from membench.strategies.memo import KEPT_LAYERS, Memo, choices_of
from tests.helpers.planning.chains import graph_of
from tests.helpers.planning.costs import UnitCost

BYTES_PER_S = st.floats(1.0, 1e6)
HOST_BYTES = st.none() | st.integers(0, 500_000)


class LinkCost(UnitCost):
    """Copies at some rate, within a host memory of some size."""

    def __init__(self, bytes_per_s: float, host_bytes: int | None = None) -> None:
        self._bytes_per_s = bytes_per_s
        self.host_limit = None if host_bytes is None else HostLimit(host_bytes)

    def offload_time_s(self, size_bytes: int) -> float:
        return size_bytes / self._bytes_per_s

    def prefetch_time_s(self, size_bytes: int) -> float:
        return size_bytes / self._bytes_per_s


@cache
def graph() -> TaskGraph:
    """Return the step of a transformer that is so deep that half of a layer is a stage."""
    return graph_of(VisionTransformer(32, 8, 8, 4, 48, 96, num_classes=3), 3, 32)


@cache
def transformer() -> Chain:
    return Chain(graph(), UnitCost())


def always_leaves(number: int) -> bool:
    """Return whether a unit leaves whatever the link's rate: an input of a layer, or made by attention."""
    problem, stages = transformer().problem, transformer().stages
    inputs = {stage.output for stage in stages[: -KEPT_LAYERS - 1]}
    unit = problem.units[number]
    made = {problem.graph.tasks[task].kind for task in unit.makers}
    return not inputs.isdisjoint(unit.blocks) or (Kind.ATTENTION in made and unit.stored)


@settings(deadline=None)
@given(BYTES_PER_S, HOST_BYTES)
def test_the_largest_share_leaves_that_a_layer_hides_and_the_host_has_room_for(
    bytes_per_s: float, host_bytes: int | None
) -> None:
    chain, cost = transformer(), LinkCost(bytes_per_s, host_bytes)
    units, choices = chain.problem.units, choices_of(chain, cost)
    host_left = float("inf") if host_bytes is None else host_bytes
    leaving = [number for number, choice in enumerate(choices) if choice == OFFLOAD]
    host_left -= sum(units[number].size_bytes for number in leaving)
    handed_on: int | None = None
    for stage in chain.stages[:-KEPT_LAYERS]:
        output = None if stage.output is None else chain.problem.unit_of[stage.output]
        own = {number for number in stage.units - {output} if units[number].stored}
        inputs = set() if handed_on is None else {handed_on}
        copied = {number for number in own if choices[number] == OFFLOAD} | inputs
        assert all(choices[number] in (OFFLOAD, RECOMPUTE) for number in stage.units - {output})
        size_bytes = sum(units[number].size_bytes for number in copied)
        if any(not always_leaves(number) for number in copied):
            assert cost.offload_time_s(size_bytes) <= stage.forward_s
        for number in own - copied:
            more_bytes = units[number].size_bytes
            assert cost.offload_time_s(size_bytes + more_bytes) > stage.forward_s or more_bytes > host_left
        handed_on = output
    for stage in chain.stages[-KEPT_LAYERS:]:
        assert not any(choices[number] in (OFFLOAD, RECOMPUTE) for number in stage.units)


@settings(deadline=None)
@given(BYTES_PER_S)
def test_inputs_and_what_attention_makes_leave_at_any_rate(bytes_per_s: float) -> None:
    choices = choices_of(transformer(), LinkCost(bytes_per_s))
    always = [number for number in range(len(choices)) if always_leaves(number)]
    last = {number for stage in transformer().stages[-KEPT_LAYERS:] for number in stage.units}
    assert always
    assert all(choices[number] == OFFLOAD for number in always if number not in last)


def copied_blocks(schedule: Schedule) -> set[int]:
    return {each.block for each in schedule.instructions if isinstance(each, Offload)}


def test_a_slow_link_recomputes_and_a_fast_one_copies() -> None:
    slow, fast = (plan(graph(), Memo(), LinkCost(rate), None) for rate in (100.0, 1e9))
    assert copied_blocks(slow) < copied_blocks(fast)
    assert sum(task.is_recomputed for task in slow.graph.tasks) > sum(task.is_recomputed for task in fast.graph.tasks)
