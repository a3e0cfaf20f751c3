"""The update of a step that runs for real: torch's optimizer, called by the tasks of the update."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from membench.backends.disk_tier import DiskTier
from membench.capture.update.captured_update import CapturedUpdate, updated_weights
from membench.capture.update.update_recorder import state_tensors
from membench.core.errors import MembenchError, UnsupportedStrategy
from membench.core.graph.call import Value
from membench.core.graph.schedule import DELAYED_STEPS, Schedule
from membench.core.graph.task_graph import TAKEN_GRADIENT_ROLES, Block, Phase, Role, Task, TaskGraph
from membench.core.libraries.torch_internals import tree_map_only
from membench.core.step.optimizer import (
    Gradients,
    PartOfOptimizer,
    Update,
    UpdateTask,
    WeightUpdate,
    made_optimizer,
    names_of,
)
from membench.core.step.stored import gradient_of
from membench.planning.rewrites.deferred import deferred_updates
from membench.profiling.measured_cost import MeasuredCost
from membench.profiling.update_times import UpdateCost, measure_update
from membench.steps.real.applied_updates import AppliedUpdates


def real_update(by: WeightUpdate, module: nn.Module, cost: MeasuredCost) -> "RealUpdate":
    """Return the update of a module's weights by an optimizer, which is made of all of them if it is not an instance.

    Raises:
        MembenchError: the update is simulated only (see `WeightUpdate.runs`), the optimizer cannot be made, or see
            `RealUpdate`.
    """
    if not by.runs:
        option = "in_backward=True" if by.in_backward else "ema=True" if by.ema else f"gradients={str(by.gradients)!r}"
        raise MembenchError(
            f"{option} of an optimizer is simulated only; leave it out of a step that runs, or predict the step"
        )
    if isinstance(by.optimizer, torch.optim.Optimizer):
        return RealUpdate(by.optimizer, module, by.gradients, cost)
    return RealUpdate(made_optimizer(by, module.parameters()), module, by.gradients, cost)


@dataclass(frozen=True)
class _AppliedUpdate:
    """An optimizer's step, with the gradients that weights have for it, and the weights that have none afterwards."""

    step: Callable[[], object]
    applied: tuple[tuple[nn.Parameter, Value], ...]
    freed: tuple[nn.Parameter, ...]

    def run(self, tensor: Callable[[Value], Tensor]) -> None:
        for weight, value in self.applied:
            gradient = gradient_of(weight, tensor(value))
            weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
        self.step()
        for weight in self.freed:
            weight.grad = None


def _moved(device: torch.device, state: Tensor) -> Tensor:
    return state.to(device) if state.dim() or state.device.type != "cpu" else state


def _step_whole(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()  # looked up now: a schedule of learning rates replaces it


class RealUpdate:
    """The update by a torch optimizer, whose states, temporaries and time are measured once, on copies of its weights.

    To the schedule its tasks are like any other, after which gradients are freed. One that updates all weights is
    ``optimizer.step()``; one of several is that step on a part of the weights, see `PartOfOptimizer`. Like parts are
    measured once. The temporaries of a whole step that can be divided are captured, so that measuring takes the memory
    of a part.

    Args:
        optimizer: over weights of the module, not necessarily all.
        module: on the device or, until the step is placed, on the CPU.
        gradients: after the update.
        cost: learns the update's times.

    Raises:
        MembenchError: the optimizer updates other tensors.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, module: nn.Module, gradients: Gradients, cost: MeasuredCost
    ) -> None:
        self._weights = updated_weights(optimizer, module)
        self._captured = CapturedUpdate(WeightUpdate(optimizer, gradients), module, cost.device)
        self.optimizer = optimizer
        self.gradients = gradients
        self._cost = cost
        self._update: Update | None = None

    def __call__(self, graph: TaskGraph) -> Update:
        """Return the update of a graph's weights, which is the same for each number of samples.

        Raises:
            MembenchError: see `measure_update`.
        """
        if self._update is None:
            found = {name for name, value in graph.gradients if value is not None}
            weights = [name for name in self._weights if name in found]
            if not weights:
                raise MembenchError("the loss has no gradient for any weight of the optimizer")
            try:
                captured = self._captured(graph)
            except MembenchError:  # it runs nevertheless, as a whole
                captured = None
            self._update = self._measured(weights, captured)
        return self._update

    def _measured(self, weights: list[str], captured: Update | None) -> Update:
        """Return the update with measured states and temporaries, in the parts in which it was captured."""
        divided = captured if captured and captured.is_divided else None
        groups = dict.fromkeys(part.weights for part in divided.parts) if divided else [tuple(weights)]
        costs: dict[Hashable, UpdateCost] = {}
        tasks: list[UpdateTask] = []
        states: dict[str, Mapping[str, int]] = {}
        times_s: list[float] = []
        for names in groups:
            like = tuple(map(self._kind_of, names))
            if like not in costs:
                of_part = {name: self._weights[name] for name in names}
                costs[like] = measure_update(self.optimizer, of_part, self._cost.device)
            cost = costs[like]
            own = dict(zip(names, cost.states.values(), strict=True))
            states |= own
            times_s.append(cost.time_s)
            tasks.append(
                UpdateTask(
                    names,
                    frozenset(state for of_weight in own.values() for state in of_weight),
                    cpu_moved_bytes=self._cpu_moved_bytes(names, captured),
                    workspace_bytes=cost.workspace_bytes,
                )
            )
        self._cost.update_times_s |= dict(zip(names_of(tasks), times_s, strict=True))
        if divided is None:
            return Update(tuple(tasks), states, self.gradients)
        whole = UpdateTask(
            tuple(weights),
            frozenset(state for task in tasks for state in task.states),
            workspace_bytes=max(task.workspace_bytes for task in (*tasks, *divided.tasks)),
        )
        self._cost.update_times_s |= dict.fromkeys(names_of([whole]), sum(times_s))
        return Update((whole,), states, self.gradients, parts=tuple(tasks))

    def _kind_of(self, name: str) -> Hashable:
        """Return what tells weights apart to the optimizer."""
        weight = self._weights[name]
        groups = enumerate(self.optimizer.param_groups)
        group = next(n for n, group in groups if any(each is weight for each in group["params"]))
        return weight.dtype, weight.shape, weight.stride(), group

    def follow_weights(self) -> None:
        """Move the states that the optimizer has to where its weights have been placed.

        Numbers in host memory stay, where torch's optimizers keep their count of steps.
        """
        for weight, states in self.optimizer.state.items():
            self.optimizer.state[weight] = tree_map_only(Tensor, partial(_moved, weight.device), states)

    def of(self, schedule: Schedule) -> AppliedUpdates:
        """Return what runs the tasks of the update.

        It does not refer to the step, which would keep device memory until a garbage collection.

        Raises:
            UnsupportedStrategy: the schedule keeps weights or states in host memory, where torch's optimizer would find
                them, or delays the update.
        """
        graph = schedule.graph
        if DELAYED_STEPS in dict(schedule.decisions):
            raise UnsupportedStrategy(
                f"strategy {schedule.strategy!r} delays the update, which is simulated only; leave delayed=true out of "
                "a step that runs, or predict the step"
            )
        for task in graph.tasks:
            for block in (graph.blocks[block] for block in task.writes if task.phase is Phase.UPDATE):
                if block.host_location and not task.on_host and block.role is not Role.ACCUMULATED:
                    raise UnsupportedStrategy(
                        f"strategy {schedule.strategy!r} keeps {block.name!r} in host memory, which torch's optimizer "
                        "would not update on the device; keep weights there, or update them after the step"
                    )
        updates = [task for task in graph.tasks if task.phase is Phase.UPDATE]
        if len(updates) == 1:
            steps = {updates[0].name: self._step(graph, self._weights, partial(_step_whole, self.optimizer))}
        else:
            steps = {}
            for task in updates:
                weights = self._changed_by(task, graph)
                part = PartOfOptimizer(self.optimizer, weights.values())
                steps[task.name] = self._step(graph, weights, part.step)
        deferred = {task.name: (task, self._changed_by(task, graph).values()) for task in deferred_updates(graph)}
        if any(hasattr(weight, "__tensor_flatten__") for _, weights in deferred.values() for weight in weights):
            raise UnsupportedStrategy(
                "weights that fully_shard divides, and other subclasses of Tensor, cannot be empty between two steps, "
                "as deferred updates leave them; leave deferred updates out (deferred_share, defers_updates)"
            )
        return AppliedUpdates(lambda task, tensor: steps[task.name].run(tensor), self.optimizer, deferred)

    def _changed_by(self, task: Task, graph: TaskGraph) -> dict[str, nn.Parameter]:
        written = (graph.blocks[block] for block in task.writes)
        return {block.name: self._weights[block.name] for block in written if block.role is Role.WEIGHT}

    def _step(
        self, graph: TaskGraph, weights: Mapping[str, nn.Parameter], step: Callable[[], object]
    ) -> "_AppliedUpdate":
        applied = (
            (weights[name], value)
            for name, value in graph.gradients
            if value and name in weights and graph.blocks[value.block].role in TAKEN_GRADIENT_ROLES
        )
        freed = tuple(weights.values()) if self.gradients is Gradients.FREED else ()
        return _AppliedUpdate(step, tuple(applied), freed)

    def _cpu_moved_bytes(self, names: tuple[str, ...], captured: Update | None) -> int:
        """Return the memory that a part moves on the CPU; where it was not captured, of weights and gradients."""
        if captured is not None:
            return sum(part.cpu_moved_bytes for part in captured.parts if set(part.weights) <= set(names))
        return 3 * sum(self._weights[name].nbytes for name in names)

    def follow_states(self, graph: TaskGraph, disk: DiskTier) -> None:
        """Let states be homes of their blocks on the disk; ``optimizer.state_dict()`` brings them back."""
        for block in graph.blocks:
            if block.is_on_disk and block.role is Role.OPTIMIZER_STATE:
                weight, _, state = block.name.rpartition(":")
                disk.follow(block.index, partial(_state_of, self.optimizer, self._weights[weight], state))
        self.optimizer.register_state_dict_pre_hook(lambda _: disk.restore())

    def states(self, graph: TaskGraph) -> list[tuple[Block, Tensor]]:
        """Return the states that the optimizer has made, each with its block."""
        found = []
        for block in graph.blocks:
            if block.role is Role.OPTIMIZER_STATE:
                weight, _, state = block.name.rpartition(":")
                tensor = _state_of(self.optimizer, self._weights[weight], state)
                found += [] if tensor is None else [(block, tensor)]
        return found

    def zero_gradients(self) -> None:
        """Zero the gradients that the last step has kept, before the passes add to them."""
        for weight in self._weights.values():
            if self.gradients is Gradients.KEPT and weight.grad is not None:
                weight.grad.zero_()


def _state_of(optimizer: torch.optim.Optimizer, weight: nn.Parameter, name: str) -> Tensor | None:
    """Return a state of a weight; None before the optimizer has made it."""
    return dict(state_tensors(optimizer.state.get(weight, {}))).get(name)
