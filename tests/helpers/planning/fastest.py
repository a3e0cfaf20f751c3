"""The fastest schedule of a small graph within a budget, found by trying all of them in whole seconds.

The compute stream runs the graph's tasks in order, and any task of the forward pass again; each direction of the link
carries one block at a time; blocks are given back at any time. Written without the planner, whose bound it checks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from membench.core.graph.task_graph import Phase, TaskGraph
from membench.core.hardware.cost_model import CostModel

_Busy = tuple[int, int]
"""A task or a block, and the seconds that are left."""


@dataclass(frozen=True)
class _State:
    done: int = 0  # tasks
    held: frozenset[int] = frozenset()
    on_host: frozenset[int] = frozenset()
    task: _Busy | None = None
    out: _Busy | None = None
    back: _Busy | None = None


class Fastest:
    """Breadth-first search over all states of a step.

    Args:
        graph: in which a block's contents never change but by an update of the caller's, after which it is copied back
            to its home where that is in host memory.
        cost: whole seconds; no launches.
    """

    def __init__(self, graph: TaskGraph, cost: CostModel, budget_bytes: int) -> None:
        self._graph, self._cost, self._budget_bytes = graph, cost, budget_bytes
        self._own = frozenset(block.index for block in graph.blocks if not block.is_external)
        self._last_use = graph.last_use
        self._homes = frozenset(block.index for block in graph.blocks if block.host_location)
        self._maker = {b: t for t in graph.tasks if t.phase is Phase.FORWARD for b in t.creates}

    def step_s(self) -> int | None:
        """Return the least seconds of a step, or None where no schedule keeps the budget."""
        start = _State(on_host=self._homes)
        states, seen, time_s = {start}, {start}, 0
        while states:
            if any(state.done == len(self._graph.tasks) and state.on_host >= self._homes for state in states):
                return time_s
            states = {self._after_a_second(s) for state in states for s in self._started(state)} - seen
            seen |= states
            time_s += 1
        return None

    def _after_a_second(self, state: _State) -> _State:
        def pass_on(busy: _Busy | None) -> _Busy | None:
            return (busy[0], busy[1] - 1) if busy and busy[1] > 1 else None

        on_host = state.on_host
        if state.out and state.out[1] == 1:
            on_host |= {state.out[0]}
        done = state.done
        if state.task and state.task[1] == 1 and state.task[0] == done:
            on_host -= self._homes & {*self._graph.tasks[done].writes}
            done += 1
        passed = map(pass_on, (state.task, state.out, state.back))
        return _State(done, state.held, on_host, *passed)

    def _started(self, state: _State) -> Iterator[_State]:
        for freed in self._freed(state):
            for copying in self._copying(freed):
                for running in self._running(copying):
                    if self._graph.external_bytes + self._graph.size_bytes(running.held) <= self._budget_bytes:
                        yield running

    def _freed(self, state: _State) -> Iterator[_State]:
        running = self._graph.tasks[state.task[0]] if state.task else None
        used = {*running.reads, *running.writes} if running else set()
        used |= {busy[0] for busy in (state.out, state.back) if busy}
        dead = {b for b in state.held - used if self._last_use[b] < state.done}
        dead -= self._homes - state.on_host
        free = [b for b in sorted(state.held - used - dead) if b in state.on_host or b in self._maker]
        for count in range(len(free) + 1):
            for given in combinations(free, count):
                yield replace(state, held=state.held - dead - set(given))

    def _copying(self, state: _State) -> Iterator[_State]:
        outs: list[_Busy | None] = [state.out]
        if state.out is None:
            usable = self._usable(state) - state.on_host
            outs += ((b, int(self._cost.offload_time_s(self._graph.blocks[b].size_bytes))) for b in usable)
        for out in outs:
            yield replace(state, out=out)
            if state.back is None:
                for b in state.on_host - state.held:
                    seconds = int(self._cost.prefetch_time_s(self._graph.blocks[b].size_bytes))
                    yield replace(state, out=out, back=(b, seconds), held=state.held | {b})

    def _running(self, state: _State) -> Iterator[_State]:
        yield state
        if state.task is not None:
            return
        usable, tasks = self._usable(state), self._graph.tasks
        again = {self._maker[b].index for b in self._maker if b not in state.held and self._maker[b].index < state.done}
        for index in sorted(again | {state.done} & set(range(len(tasks)))):
            task = tasks[index]
            changed = self._homes.intersection(task.writes)
            if usable >= self._own & set(task.reads) and not (state.out and state.out[0] in changed):
                busy = (index, int(self._cost.task_time_s(task)))
                yield replace(state, task=busy, held=state.held | set(task.creates))

    def _usable(self, state: _State) -> frozenset[int]:
        """Return the blocks whose contents are on the device."""
        made = set(self._graph.tasks[state.task[0]].creates) if state.task else set()
        return state.held - made - ({state.back[0]} if state.back else set())
