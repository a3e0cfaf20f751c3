"""The update of a step that runs for real: torch's optimizer, called by the task of the update."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from membench.capture.update import updated_weights
from membench.core.call import Value
from membench.core.errors import MembenchError, UnsupportedStrategy
from membench.core.optimizer import Gradients, Update, UpdateTask, WeightUpdate, made_optimizer
from membench.core.schedule import Schedule
from membench.core.task_graph import Phase, Role, Task, TaskGraph
from membench.profiling.measured_cost import MeasuredCost
from membench.profiling.update import measure_update


def real_update(by: WeightUpdate, module: nn.Module, cost: MeasuredCost) -> "RealUpdate":
    """Return the update of a module's weights by an optimizer, which is made of all of them if it is not an instance.

    Raises:
        MembenchError: the update is in the backward pass or averages the weights, the optimizer cannot be made, or see
            `RealUpdate`.
    """
    if not by.runs:
        option = "in_backward" if by.in_backward else "ema"
        raise MembenchError(
            f"{option}=True of an optimizer is simulated only; leave it out of a step that runs, or predict the step"
        )
    if isinstance(by.optimizer, torch.optim.Optimizer):
        return RealUpdate(by.optimizer, module, by.gradients, cost)
    return RealUpdate(made_optimizer(by, module.parameters()), module, by.gradients, cost)


class RealUpdate:
    """The update by a torch optimizer: one task, whose states, temporaries and time are measured once on a copy.

    To the schedule it is a task like any other, after which the gradients are freed; what happens within it is torch's
    ``optimizer.step()``.

    Args:
        optimizer: over weights of the module, not necessarily all.
        module: on the device or, until the step is placed, on the CPU.
        gradients: after the update.
        cost: learns the update's time.

    Raises:
        MembenchError: the optimizer updates other tensors.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, module: nn.Module, gradients: Gradients, cost: MeasuredCost
    ) -> None:
        self._weights = updated_weights(optimizer, module)
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
            weights = {name: weight for name, weight in self._weights.items() if name in found}
            if not weights:
                raise MembenchError("the loss has no gradient for any weight of the optimizer")
            cost = measure_update(self.optimizer, weights, self._cost.device)
            self._cost.update_time_s = cost.time_s
            states = frozenset(state for of_weight in cost.states.values() for state in of_weight)
            task = UpdateTask(tuple(weights), states, workspace_bytes=cost.workspace_bytes)
            self._update = Update((task,), cost.states, self.gradients)
        return self._update

    def of(self, schedule: Schedule) -> Callable[[Task, Callable[[Value], Tensor]], None]:
        """Return the function that applies a step's gradients; it takes one that returns a value's tensor.

        It does not refer to the step, which would keep device memory until a garbage collection.

        Raises:
            UnsupportedStrategy: the schedule keeps weights or states in host memory, where torch's optimizer would find them.
        """
        graph = schedule.graph
        for task in graph.tasks:
            for block in (graph.blocks[block] for block in task.writes if task.phase is Phase.UPDATE):
                if block.host_location and not task.on_host and block.role is not Role.ACCUMULATED:
                    raise UnsupportedStrategy(
                        f"strategy {schedule.strategy!r} keeps {block.name!r} in host memory, which torch's optimizer would not "
                        "update on the device; keep weights there, or update them after the step"
                    )
        applied = [
            (self._weights[name], value)
            for name, value in graph.gradients
            if value and graph.blocks[value.block].role is Role.APPLIED_GRADIENT
        ]
        freed = tuple(self._weights.values()) if self.gradients is Gradients.FREED else ()

        def apply(task: Task, tensor: Callable[[Value], Tensor]) -> None:
            for weight, value in applied:
                gradient = tensor(value)
                weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)
            self.optimizer.step()
            for weight in freed:
                weight.grad = None

        return apply

    def made_accumulators_bytes(self, graph: TaskGraph) -> int:
        """Return the bytes of a micro-batch's accumulators that each step makes anew, because the update frees them."""
        if self.gradients is Gradients.KEPT:
            return 0
        updated = [value for name, value in graph.gradients if value and name in self._weights]
        return graph.size_bytes({value.block for value in updated})

    def zero_gradients(self) -> None:
        """Zero the gradients that the last step has kept, before the passes add to them."""
        for weight in self._weights.values():
            if self.gradients is Gradients.KEPT and weight.grad is not None:
                weight.grad.zero_()
