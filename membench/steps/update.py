"""The update of a step that runs for real: torch's optimizer, called by the task of the update."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from membench.core.call import Value
from membench.core.errors import MembenchError, UnsupportedStrategy
from membench.core.optimizer import Gradients, Implementation, Update, UpdateRule, UpdateTask
from membench.core.schedule import Schedule
from membench.core.task_graph import Role, TaskGraph
from membench.profiling.measured_cost import MeasuredCost
from membench.profiling.update import measure_update

_BY_NAME: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}
_OPTIONS = {
    Implementation.FOREACH: {"foreach": True},
    Implementation.FOR_LOOP: {"foreach": False},
    Implementation.FUSED: {"fused": True},
}
_L2_PENALTY = 1e-4


def torch_optimizer(rule: UpdateRule, module: nn.Module) -> torch.optim.Optimizer:
    """Return torch's optimizer of a rule's name over a module's weights, with torch's defaults.

    Raises:
        MembenchError: `torch.optim` has none of that name.
    """
    if rule.name not in _BY_NAME:
        raise MembenchError(
            f"optimizer {rule.name!r} can only be simulated; choose one of {', '.join(_BY_NAME)}, or pass an instance"
        )
    options: dict[str, float | bool] = {"weight_decay": _L2_PENALTY} if rule.l2_penalty else {}
    if rule.implementation is not None:
        options |= _OPTIONS[Implementation(rule.implementation)]
    return _BY_NAME[rule.name](module.parameters(), **options)


def real_update(
    optimizer: UpdateRule | torch.optim.Optimizer, module: nn.Module, cost: MeasuredCost
) -> "RealUpdate":
    """Return the update by torch's optimizer of a rule, or by an instance, which frees the gradients.

    Raises:
        MembenchError: see `torch_optimizer` and `RealUpdate`.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        return RealUpdate(optimizer, module, Gradients.FREED, cost)
    return RealUpdate(torch_optimizer(optimizer, module), module, Gradients(optimizer.gradients), cost)


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
        held = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        self._weights = {name: weight for name, weight in module.named_parameters() if id(weight) in held}
        if len(self._weights) < len(held):
            raise MembenchError(
                "the optimizer updates tensors that are not weights of the module; make it of module.parameters()"
            )
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
            task = UpdateTask(tuple(weights), workspace_bytes=cost.workspace_bytes)
            self._update = Update((task,), cost.states, self.gradients)
        return self._update

    def of(self, schedule: Schedule) -> Callable[[Callable[[Value], Tensor]], None]:
        """Return the function that applies a step's gradients; it takes one that returns a value's tensor.

        It does not refer to the step, which would keep device memory until a garbage collection.

        Raises:
            UnsupportedStrategy: the schedule keeps weights or states in host memory, where torch's optimizer would find them.
        """
        graph = schedule.graph
        for block in graph.blocks:
            if block.host_location and block.role in (Role.WEIGHT, Role.OPTIMIZER_STATE):
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

        def apply(tensor: Callable[[Value], Tensor]) -> None:
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
