"""vDNN: offloaded activations, the search for prefetches, and the trials of vDNN_dyn."""

from itertools import pairwise

import pytest
from torch import nn

from membench.core import configuration
from membench.core.errors import InfeasibleSchedule, UnsupportedStrategy
from membench.core.graph.schedule import Compute, Free, Offload, Prefetch, Schedule, Synchronize
from membench.core.graph.task_graph import Kind, Phase
from membench.cost.roofline import RooflineCost
from membench.planning.algorithms import Preference
from membench.planning.checking.validate import validate
from membench.strategies.base import Strategy
from membench.strategies.vdnn import VdnnAll, VdnnConv, VdnnDyn
from tests.helpers.planning.chains import chain_of_kinds
from tests.helpers.planning.costs import TwoAlgorithmCost
from tests.helpers.planning.graphs import COST, captured, captured_model

TORCH7 = configuration.load("framework", "torch7")
CONV, POOL, RELU, LINEAR = Kind.CONVOLUTION, Kind.POOLING, Kind.RELU, Kind.LINEAR
NETWORK = chain_of_kinds(CONV, RELU, POOL, CONV, RELU, CONV, POOL, LINEAR, RELU, LINEAR)


def offloaded(schedule: Schedule) -> set[str]:
    names = schedule.graph.blocks
    return {names[item.block].name for item in schedule.instructions if isinstance(item, Offload)}


def test_all_offloads_inputs_of_convolutions_and_poolings() -> None:
    schedule = VdnnAll().schedule(NETWORK, TwoAlgorithmCost(), None)
    # not map6 and map7, which the classifier reads
    assert offloaded(schedule) == {"activation0", "activation2", "activation3", "activation5"}


def test_conv_offloads_inputs_of_convolutions() -> None:
    assert offloaded(VdnnConv().schedule(NETWORK, TwoAlgorithmCost(), None)) == {"activation2", "activation3"}


def test_an_offload_overlaps_with_the_layer_that_reads_it_and_the_layer_ends_with_a_synchronize() -> None:
    schedule = VdnnConv().schedule(NETWORK, TwoAlgorithmCost(), None)
    tasks = schedule.graph.tasks
    program = [item for item in schedule.instructions if isinstance(item, Compute | Offload | Synchronize)]
    for before, item in pairwise(program):
        if isinstance(before, Offload):
            assert isinstance(item, Compute)
            assert before.block in tasks[item.task].reads
            assert isinstance(program[program.index(item) + 1], Synchronize)


def test_each_activation_is_prefetched_before_the_layer_that_needs_it_begins() -> None:
    schedule = VdnnAll().schedule(NETWORK, TwoAlgorithmCost(), None)
    validate(schedule)
    before: list[str] = []
    computed: set[int] = set()
    for item in schedule.instructions:
        if isinstance(item, Compute):
            computed.add(item.task)
        if isinstance(item, Prefetch):
            readers = [t.index for t in schedule.graph.tasks if t.phase is Phase.BACKWARD and item.block in t.reads]
            assert not computed & set(readers)
            before.append(schedule.graph.blocks[item.block].name)
    assert before == ["activation5", "activation3", "activation2", "activation0"]


def test_the_search_does_not_look_past_a_convolution() -> None:
    """While conv 3's backward runs, the nearest offloaded input is its own neighbour's, never one further back."""
    schedule = VdnnAll().schedule(chain_of_kinds(CONV, CONV, CONV, CONV), TwoAlgorithmCost(), None)
    order: list[str] = []
    for item in schedule.instructions:
        if isinstance(item, Prefetch):
            order.append(schedule.graph.blocks[item.block].name)
        elif isinstance(item, Compute) and schedule.graph.tasks[item.task].phase is Phase.BACKWARD:
            order.append(schedule.graph.tasks[item.task].name)
    assert order.index("activation1") < order.index("convolution3 backward") < order.index("activation0")
    assert order.index("activation0") < order.index("convolution2 backward")


@pytest.mark.parametrize("strategy", [VdnnAll(), VdnnConv(), VdnnDyn()])
def test_memory_is_released_at_the_end_of_a_layer(strategy: Strategy) -> None:
    """The weight gradient reads X last, but X stays until the data gradient is computed too (Section 3.2)."""
    convolutions = [nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)]
    network = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(8 * 6 * 6, 10))
    graph = TORCH7.lower(captured(network, 2, 8, 6, 6))
    schedule = strategy.schedule(graph, COST, None)
    validate(schedule)
    unfinished: set[int] = set()
    freed = 0
    for item in schedule.instructions:
        if isinstance(item, Compute):
            task = graph.tasks[item.task]
            layers = graph.backward_layers if task.phase is Phase.BACKWARD else graph.forward_layers
            [layer] = [layer for layer in layers if task in layer.tasks]
            unfinished = (unfinished or {each.index for each in layer.tasks}) - {item.task}
        if isinstance(item, Free):
            freed += 1
            assert not unfinished
    assert max(len(layer.tasks) for layer in graph.backward_layers) > 1
    assert freed > len(convolutions)


def algorithms(schedule: Schedule) -> list[str]:
    return [task.algorithm for task in schedule.graph.tasks if task.convolution]


def test_memory_optimal_convolutions_need_no_workspace() -> None:
    schedule = VdnnAll(Preference.MEMORY).schedule(NETWORK, TwoAlgorithmCost(), None)
    assert set(algorithms(schedule)) == {"small"}
    faster = VdnnAll(Preference.PERFORMANCE).schedule(NETWORK, TwoAlgorithmCost(), None)
    assert set(algorithms(faster)) == {"fast"}
    assert faster.peak_bytes > schedule.peak_bytes


def test_dyn_without_a_budget_is_fastest_and_copies_nothing() -> None:
    schedule = VdnnDyn().schedule(NETWORK, TwoAlgorithmCost(), None)
    assert set(algorithms(schedule)) == {"fast"}
    assert not offloaded(schedule)


def test_dyn_takes_the_first_trial_that_fits() -> None:
    network = chain_of_kinds(CONV, POOL, POOL, CONV, CONV, CONV, LINEAR)
    nothing = VdnnDyn().schedule(network, TwoAlgorithmCost(), None).peak_bytes
    conv = VdnnConv().schedule(network, TwoAlgorithmCost(), None).peak_bytes
    everything = VdnnAll().schedule(network, TwoAlgorithmCost(), None).peak_bytes
    assert nothing > conv > everything
    assert not offloaded(VdnnDyn().schedule(network, TwoAlgorithmCost(), nothing))
    assert offloaded(VdnnDyn().schedule(network, TwoAlgorithmCost(), conv)) == {
        "activation2",
        "activation3",
        "activation4",
    }
    assert offloaded(VdnnDyn().schedule(network, TwoAlgorithmCost(), conv - 1)) >= {
        "activation2",
        "activation3",
        "activation4",
    }
    smallest = VdnnAll(Preference.MEMORY).schedule(network, TwoAlgorithmCost(), None).peak_bytes
    with pytest.raises(InfeasibleSchedule):
        VdnnDyn().schedule(network, TwoAlgorithmCost(), smallest - 1)


def test_dyn_steps_down_only_the_convolutions_that_lack_room() -> None:
    budget_bytes = VdnnAll().schedule(NETWORK, TwoAlgorithmCost(), None).peak_bytes - 1
    schedule = VdnnDyn().schedule(NETWORK, TwoAlgorithmCost(), budget_bytes)
    assert {"fast", "small"} == set(algorithms(schedule))
    validate(schedule, budget_bytes=budget_bytes)


def test_a_workspace_needs_one_piece_of_the_pool() -> None:
    """Within the same budget, so convolutions step down that do not where memory is held on demand."""
    torch7 = TORCH7.lower(captured_model("vgg16", 8))
    cost = RooflineCost(configuration.load("device", "k40_vdnn"), TORCH7.efficiency)
    budget_bytes = VdnnAll().schedule(torch7, cost, None).peak_bytes
    always_all, pooled = VdnnDyn(["all"]), VdnnDyn(["all"], pool=budget_bytes)
    on_demand, in_pool = (strategy.schedule(torch7, cost, budget_bytes) for strategy in (always_all, pooled))
    validate(in_pool, budget_bytes=budget_bytes)
    fastest = [algorithms[0].name for algorithms in map(cost.algorithms, torch7.tasks) if algorithms[0].name]
    assert algorithms(on_demand) == fastest != algorithms(in_pool)


def test_dyn_tries_something() -> None:
    with pytest.raises(UnsupportedStrategy, match="choose from none, conv, all"):
        VdnnDyn([])


def test_dyn_may_keep_to_one_policy_at_any_budget() -> None:
    """Then it is that policy, with the algorithms that there is room for."""
    always_all = VdnnDyn(policies=["all"])
    free = always_all.schedule(NETWORK, TwoAlgorithmCost(), None)
    assert offloaded(free) == offloaded(VdnnAll().schedule(NETWORK, TwoAlgorithmCost(), None)) != set()
    assert set(algorithms(free)) == {"fast"}
    tight = always_all.schedule(NETWORK, TwoAlgorithmCost(), free.peak_bytes - 1)
    assert offloaded(tight) == offloaded(free)
    assert set(algorithms(tight)) == {"fast", "small"}


NORM, ATTENTION = Kind.NORMALIZATION, Kind.ATTENTION
ENCODER = chain_of_kinds(CONV, NORM, LINEAR, ATTENTION, LINEAR, NORM, LINEAR, RELU, LINEAR)


def test_a_classifier_begins_behind_a_transformer_s_last_norm() -> None:
    schedule = VdnnAll().schedule(ENCODER, TwoAlgorithmCost(), None)
    validate(schedule)
    # not activation5, which the last norm writes and the classifier reads
    assert offloaded(schedule) == {f"activation{i}" for i in range(5)}


def test_without_convolutions_the_search_does_not_look_past_a_linear_layer_or_attention() -> None:
    schedule = VdnnAll().schedule(ENCODER, TwoAlgorithmCost(), None)
    order = [
        schedule.graph.blocks[item.block].name if isinstance(item, Prefetch) else schedule.graph.tasks[item.task].name
        for item in schedule.instructions
        if isinstance(item, Prefetch | Compute)
    ]
    assert order.index("normalization5 backward") < order.index("activation2") < order.index("linear4 backward")
    assert order.index("linear4 backward") < order.index("activation1") < order.index("attention3 backward")
