"""vDNN: what is sent away, what the search brings back, and what the trials of vDNN_dyn decide."""

from dataclasses import replace
from itertools import pairwise

import pytest

from membench.core.convolution import Algorithm, Convolution
from membench.core.errors import InfeasibleSchedule, UnsupportedStrategy
from membench.core.schedule import Compute, Offload, Prefetch, Schedule, Synchronize
from membench.core.task_graph import Block, Kind, Phase, Role, Task, TaskGraph
from membench.planning.algorithms import Preference
from membench.planning.validate import validate
from membench.strategies.vdnn import VdnnAll, VdnnConv, VdnnDyn
from tests.backends.test_simulated import UnitCost

MAP_BYTES = 100
WORKSPACE_BYTES = 400


class TwoWays(UnitCost):
    """A convolution runs in 1 s with workspace, or in 2 s without."""

    def algorithms(self, task: Task) -> tuple[Algorithm, ...]:
        return Algorithm("fast", WORKSPACE_BYTES, 1.0), Algorithm("small", 0, 2.0)


def chain(*kinds: Kind) -> TaskGraph:
    """Layers of these kinds one after another; a layer's backward reads its input, save for ReLU in place."""
    geometry = Convolution(1, 1, 1, (5, 5), (5, 5), (3, 3), (1, 1), (1, 1), (1, 1), 1, 4)
    blocks: list[Block] = [Block(0, "images", MAP_BYTES, Role.INPUT, -1)]
    tasks: list[Task] = []
    inputs: list[int] = []

    def block(name: str, role: Role, layer: int, size_bytes: int = MAP_BYTES) -> int:
        blocks.append(Block(len(blocks), name, size_bytes, role, layer))
        return blocks[-1].index

    def task(name: str, kind: Kind, phase: Phase, layer: int, reads: list[int], writes: list[int]) -> None:
        created = tuple(b for b in writes if b not in reads)
        convolution = geometry if kind is Kind.CONVOLUTION else None
        tasks.append(
            Task(len(tasks), name, kind, phase, layer, tuple(reads), tuple(writes), created, convolution=convolution)
        )  # fmt: skip

    for layer, kind in enumerate(kinds):
        inputs.append(blocks[-1].index if layer else 0)
        in_place = kind is Kind.RELU
        output = inputs[-1] if in_place else block(f"map{layer}", Role.ACTIVATION, layer)
        task(f"{kind}{layer}", kind, Phase.FORWARD, layer, [inputs[-1]], [output])
    last = blocks[-1].index
    loss = block("loss", Role.LOSS, len(kinds), 4)
    task("loss", Kind.LOSS, Phase.LOSS, len(kinds), [last], [loss])
    gradient = block("loss gradient", Role.GRADIENT, len(kinds))
    task("loss backward", Kind.LOSS, Phase.BACKWARD, len(kinds), [last], [gradient])
    for layer, kind in reversed(list(enumerate(kinds))):
        in_place = kind is Kind.RELU
        produced = gradient if in_place else block(f"gradient{layer}", Role.GRADIENT, layer)
        task(f"{kind}{layer} backward", kind, Phase.BACKWARD, layer, [inputs[layer], gradient], [produced])
        gradient = produced
    weight = block("weight gradient", Role.WEIGHT_GRADIENT, 0, 4)
    tasks[-1] = replace(tasks[-1], writes=(*tasks[-1].writes, weight), creates=(*tasks[-1].creates, weight))
    layers = tuple(map(str, range(len(kinds) + 1)))
    return TaskGraph("chain", 1, tuple(blocks), tuple(tasks), layers)


CONV, POOL, RELU, LINEAR = Kind.CONVOLUTION, Kind.POOLING, Kind.RELU, Kind.LINEAR
NETWORK = chain(CONV, RELU, POOL, CONV, RELU, CONV, POOL, LINEAR, RELU, LINEAR)


def offloaded(schedule: Schedule) -> set[str]:
    names = schedule.graph.blocks
    return {names[item.block].name for item in schedule.instructions if isinstance(item, Offload)}


def test_all_sends_away_what_convolutions_and_poolings_read() -> None:
    schedule = VdnnAll().schedule(NETWORK, TwoWays(), None)
    # not map6 and map7, which the classifier reads
    assert offloaded(schedule) == {"map0", "map2", "map3", "map5"}


def test_conv_sends_away_what_convolutions_read() -> None:
    assert offloaded(VdnnConv().schedule(NETWORK, TwoWays(), None)) == {"map2", "map3"}


def test_an_offload_runs_beside_the_layer_that_reads_it_and_the_layer_ends_with_a_synchronize() -> None:
    schedule = VdnnConv().schedule(NETWORK, TwoWays(), None)
    tasks = schedule.graph.tasks
    program = [item for item in schedule.instructions if isinstance(item, Compute | Offload | Synchronize)]
    for before, item in pairwise(program):
        if isinstance(before, Offload):
            assert isinstance(item, Compute)
            assert before.block in tasks[item.task].reads
            assert isinstance(program[program.index(item) + 1], Synchronize)


def test_each_map_is_back_before_the_layer_that_needs_it_begins() -> None:
    schedule = VdnnAll().schedule(NETWORK, TwoWays(), None)
    validate(schedule)
    before: list[str] = []
    computed: set[int] = set()
    for item in schedule.instructions:
        if isinstance(item, Compute):
            computed.add(item.task)
        if isinstance(item, Prefetch):
            readers = [
                t.index for t in schedule.graph.tasks if t.phase is Phase.BACKWARD and item.block in t.reads
            ]
            assert not computed & set(readers)
            before.append(schedule.graph.blocks[item.block].name)
    assert before == ["map5", "map3", "map2", "map0"]


def test_the_search_does_not_look_past_a_convolution() -> None:
    """While conv 3's backward runs, the nearest offloaded input is its own neighbour's, never one further back."""
    schedule = VdnnAll().schedule(chain(CONV, CONV, CONV, CONV), TwoWays(), None)
    order: list[str] = []
    for item in schedule.instructions:
        if isinstance(item, Prefetch):
            order.append(schedule.graph.blocks[item.block].name)
        elif isinstance(item, Compute) and schedule.graph.tasks[item.task].phase is Phase.BACKWARD:
            order.append(schedule.graph.tasks[item.task].name)
    assert order.index("map1") < order.index("convolution3 backward") < order.index("map0")
    assert order.index("map0") < order.index("convolution2 backward")


def algorithms(schedule: Schedule) -> list[str]:
    return [task.algorithm for task in schedule.graph.tasks if task.convolution]


def test_memory_optimal_convolutions_need_no_workspace() -> None:
    schedule = VdnnAll(Preference.MEMORY).schedule(NETWORK, TwoWays(), None)
    assert set(algorithms(schedule)) == {"small"}
    faster = VdnnAll(Preference.PERFORMANCE).schedule(NETWORK, TwoWays(), None)
    assert set(algorithms(faster)) == {"fast"}
    assert faster.peak_bytes > schedule.peak_bytes


def test_dyn_without_a_budget_is_fastest_and_copies_nothing() -> None:
    schedule = VdnnDyn().schedule(NETWORK, TwoWays(), None)
    assert set(algorithms(schedule)) == {"fast"}
    assert not offloaded(schedule)


def test_dyn_takes_the_first_trial_that_fits() -> None:
    network = chain(CONV, POOL, POOL, CONV, CONV, CONV, LINEAR)
    nothing = VdnnDyn().schedule(network, TwoWays(), None).peak_bytes
    conv = VdnnConv().schedule(network, TwoWays(), None).peak_bytes
    everything = VdnnAll().schedule(network, TwoWays(), None).peak_bytes
    assert nothing > conv > everything
    assert not offloaded(VdnnDyn().schedule(network, TwoWays(), nothing))
    assert offloaded(VdnnDyn().schedule(network, TwoWays(), conv)) == {"map2", "map3", "map4"}
    assert offloaded(VdnnDyn().schedule(network, TwoWays(), conv - 1)) >= {"map2", "map3", "map4"}
    smallest = VdnnAll(Preference.MEMORY).schedule(network, TwoWays(), None).peak_bytes
    with pytest.raises(InfeasibleSchedule):
        VdnnDyn().schedule(network, TwoWays(), smallest - 1)


def test_dyn_steps_down_only_the_convolutions_that_lack_room() -> None:
    budget_bytes = VdnnAll().schedule(NETWORK, TwoWays(), None).peak_bytes - 1
    schedule = VdnnDyn().schedule(NETWORK, TwoWays(), budget_bytes)
    assert {"fast", "small"} == set(algorithms(schedule))
    validate(schedule, budget_bytes=budget_bytes)


def test_dyn_tries_something() -> None:
    with pytest.raises(UnsupportedStrategy, match="choose from none, conv, all"):
        VdnnDyn([])


def test_dyn_may_keep_to_one_policy_whatever_the_budget() -> None:
    """Then it is that policy, with the algorithms that there is room for."""
    always_all = VdnnDyn(policies=["all"])
    free = always_all.schedule(NETWORK, TwoWays(), None)
    assert offloaded(free) == offloaded(VdnnAll().schedule(NETWORK, TwoWays(), None)) != set()
    assert set(algorithms(free)) == {"fast"}
    tight = always_all.schedule(NETWORK, TwoWays(), free.peak_bytes - 1)
    assert offloaded(tight) == offloaded(free)
    assert set(algorithms(tight)) == {"fast", "small"}
