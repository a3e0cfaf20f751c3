"""Optimizers: how a step updates its weights, and what that update reads, writes and holds."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from membench.core.checks import NAME, SWITCH, check, choice
from membench.core.errors import MembenchError, one_line
from membench.core.graph.collective import Collective
from membench.core.graph.precision import Precision
from membench.core.graph.task_graph import Kind, TaskGraph
from membench.core.libraries.torch_contexts import is_hook_of_optimizer, note_optimizer_step, runs_hooks, without_hooks
from membench.core.libraries.torch_internals import tree_leaves, tree_map
from membench.core.targets import find_target

Make = Callable[..., torch.optim.Optimizer]
"""Makes an optimizer of an iterable of weights: a class or a function."""


_OPTIMIZER_STATE = ("defaults", "state", "param_groups")


class Gradients(StrEnum):
    """What happens to a weight's gradient after the update."""

    FREED = "freed"  # zero_grad(set_to_none=True): it does not exist in the next forward pass
    FREED_LATE = "freed_late"  # the same behind the next forward pass: it exists until the backward pass begins
    KEPT = "kept"  # zeroed in place: it exists throughout, and the backward pass adds to it


@dataclass(frozen=True, slots=True)
class UpdateTask:
    """A part of the update that runs at once.

    Attributes:
        weights: by name.
        states: names of the weights' states that it uses.
        kind, precision: see `Task`.
        operations: floating-point operations.
        moved_bytes: device memory read and written.
        host_bytes: size of states in host memory that it reads and writes.
        cpu_moved_bytes: memory read and written where it runs on the host's processor: by torch's fused kernel, where
            the class has one. 0: not known, as of a task that only runs on the device.
        workspace_bytes: peak of the temporaries.
        launches: kernels.
        uses_gradients: whether it reads the weights' gradients.
        collective: by which ranks exchange the weights; None: it computes.
        sent: weights that it reads alone, a rank's own ones, which a collective sends to the others.
    """

    weights: tuple[str, ...]
    states: frozenset[str] = frozenset()
    kind: Kind = Kind.OTHER
    precision: Precision = Precision.FP32
    operations: int = 0
    moved_bytes: int = 0
    host_bytes: int = 0
    cpu_moved_bytes: int = 0
    workspace_bytes: int = 0
    launches: int = 1
    uses_gradients: bool = True
    collective: Collective | None = None
    sent: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Update:
    """The update of one graph's weights.

    Attributes:
        tasks: in order, as the program runs it.
        states: bytes of each state on the device by its name, by the weight's name.
        gradients: after the update.
        in_backward: whether a task runs in the backward pass, as soon as the gradients that it uses are final.
        parts: the same update group by group of weights, each by a step of the optimizer over that group alone; empty:
            `tasks`, and then it does not run in parts.
    """

    tasks: tuple[UpdateTask, ...]
    states: Mapping[str, Mapping[str, int]]
    gradients: Gradients = Gradients.FREED
    in_backward: bool = False
    parts: tuple[UpdateTask, ...] = ()

    def __post_init__(self) -> None:
        if not self.parts:
            object.__setattr__(self, "parts", self.tasks)

    @property
    def is_divided(self) -> bool:
        """Whether its parts may run at different times of the step."""
        return self.in_backward or self.parts is not self.tasks


def names_of(tasks: Sequence[UpdateTask]) -> list[str]:
    """Return the names of the tasks of an update in a graph, which are unique."""
    is_whole = len({task.weights for task in tasks if not task.collective}) == 1
    return [
        "weights:all-gather"
        if task.collective
        else ("update" if is_whole else f"{task.weights[0]}:update")
        + (" of products" if task.kind is Kind.LINEAR else "")
        + ("" if task.uses_gradients else " of averages")
        for task in tasks
    ]


UpdateOf = Callable[[TaskGraph], Update]
"""Returns the update of a graph's weights."""


@dataclass(frozen=True)
class WeightUpdate:
    """How a step updates its weights: by an optimizer, at the end of the step or in the backward pass.

    Attributes:
        optimizer: a class of `torch.optim` or of another package, a `functools.partial` of one
            (``partial(torch.optim.AdamW, fused=True)``), or an instance over weights of the module.
        gradients: freed or kept after the update.
        in_backward: update each weight as soon as its gradient is final, and free the gradient at once, as PyTorch's
            ``register_post_accumulate_grad_hook`` and torchtune's ``optimizer_in_bwd`` do; each weight has an optimizer
            of its own.
        ema: also average the weights exponentially, as `torch.optim.swa_utils.AveragedModel` does with
            ``get_ema_multi_avg_fn``: a copy of each updated weight, in its precision.
        name: in tables; empty: that of the optimizer's class.

    Raises:
        MembenchError: a value is not allowed.
    """

    optimizer: Make | torch.optim.Optimizer
    gradients: Gradients = Gradients.FREED
    in_backward: bool = False
    ema: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        if not callable(self.optimizer) and not isinstance(self.optimizer, torch.optim.Optimizer):
            raise MembenchError(
                f"an optimizer is a name, a class of torch.optim, a functools.partial of one, or an instance, not "
                f"{self.optimizer!r}"
            )
        check(SWITCH, in_backward=self.in_backward, ema=self.ema)
        object.__setattr__(self, "gradients", choice(Gradients, "gradients", self.gradients))
        if self.in_backward and self.gradients is not Gradients.FREED:
            raise MembenchError(
                f"in_backward=True frees each gradient after its update; leave gradients={str(self.gradients)!r} or "
                "in_backward out"
            )
        if not self.name:
            object.__setattr__(self, "name", _name_of(self.optimizer))
        check(NAME, name=self.name)

    @property
    def runs(self) -> bool:
        """Whether a step that runs can update its weights so; otherwise the update is simulated only."""
        return not (self.in_backward or self.ema or self.gradients is Gradients.FREED_LATE)


def _name_of(optimizer: Make | torch.optim.Optimizer) -> str:
    if isinstance(optimizer, torch.optim.Optimizer):
        return type(optimizer).__name__
    function = optimizer.func if isinstance(optimizer, partial) else optimizer
    return str(getattr(function, "__name__", type(function).__name__))


def made_optimizer(by: WeightUpdate, weights: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
    """Return the optimizer over some weights, of an update that is not by an instance.

    Raises:
        MembenchError: the class does not accept its options or the weights, or makes something else.
    """
    assert not isinstance(by.optimizer, torch.optim.Optimizer)
    try:
        made = by.optimizer(list(weights))
    except (ArithmeticError, AttributeError, LookupError, TypeError, RuntimeError, ValueError) as error:
        raise MembenchError(
            f"optimizer {by.name} cannot be made ({one_line(error)}); change its options, or choose another one"
        ) from error
    if not isinstance(made, torch.optim.Optimizer):
        raise MembenchError(
            f"optimizer {by.name} makes a {type(made).__name__} of weights; pass a name, a class of torch.optim, or a "
            f"partial of one"
        )
    return made


def copy_of_optimizer(
    optimizer: torch.optim.Optimizer, replaced: Mapping[int, Any], stateless: Collection[torch.Tensor] = ()
) -> torch.optim.Optimizer:
    """Return a copy of an optimizer with its attributes, which `copy.deepcopy` leaves out, and without its hooks.

    Args:
        replaced: what the copy has in place of objects, by their id.
        stateless: weights of the optimizer whose states the copy does not have.
    """
    copied: torch.optim.Optimizer = object.__new__(type(optimizer))
    memo = dict(replaced)

    def of_leaf(leaf: Any) -> Any:
        if isinstance(leaf, torch.optim.Optimizer):
            return copy_of_optimizer(leaf, memo, stateless)
        return deepcopy(leaf, memo) if isinstance(leaf, torch.Tensor) else leaf

    states = optimizer.state
    if id(states) not in memo:  # otherwise they are those of an optimizer that has this one as an attribute
        kept = copy(states)
        for weight in stateless:  # not an empty state: Adagrad expects a number of steps in each
            kept.pop(weight, None)
        memo[id(states)] = deepcopy(kept, memo)
    copied_state = {name: deepcopy(vars(optimizer)[name], memo) for name in _OPTIMIZER_STATE}
    for name, value in vars(optimizer).items():
        if name not in _OPTIMIZER_STATE and not is_hook_of_optimizer(name):
            copied_state[name] = tree_map(of_leaf, value)
    copied.__setstate__(copied_state)
    return copied


def nested_optimizers(optimizer: torch.optim.Optimizer) -> Iterator[torch.optim.Optimizer]:
    """Yield an optimizer, and those among its attributes."""
    yield optimizer
    for name, value in vars(optimizer).items():
        if name not in _OPTIMIZER_STATE and not is_hook_of_optimizer(name):
            for leaf in tree_leaves(value):
                if isinstance(leaf, torch.optim.Optimizer):
                    yield from nested_optimizers(leaf)


def steps_as_its_class(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether ``optimizer.step()``, which a schedule's calls, is the class's, without hooks."""
    steps = [vars(each)["step"] for each in nested_optimizers(optimizer) if "step" in vars(each)]
    is_of_class = all(getattr(step, "__wrapped__", None) is type(optimizer).step for step in steps)
    return is_of_class and not any(map(runs_hooks, nested_optimizers(optimizer)))


def options_and_attributes(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return what an optimizer holds in addition to weights and their states, as a step may change it."""
    found: list[Any] = []
    for each in nested_optimizers(optimizer):
        for group in each.param_groups:
            found += tree_leaves({name: value for name, value in group.items() if name != "params"})
        for name, value in vars(each).items():
            if name not in _OPTIMIZER_STATE and not is_hook_of_optimizer(name):
                found += tree_leaves(value)
    return found


def differ(before: Sequence[Any], after: Sequence[Any]) -> bool:
    """Return whether a step changed an optimizer's options or attributes; equal numbers and texts are the same."""
    pairs = zip(before, after, strict=False)
    return len(before) != len(after) or any(
        one is not other and not (isinstance(one, bool | int | float | str) and one == other) for one, other in pairs
    )


class PartOfOptimizer:
    """A step of an optimizer on some of its weights.

    A view of the optimizer steps: an object of the same class with the same state and attributes, whose groups have the
    optimizer's present options and only these weights. What the step sets on the view is set on the optimizer.

    Args:
        optimizer: without hooks, see `steps_as_its_class`.
        weights: those of each group, in its order.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, weights: Collection[torch.Tensor]) -> None:
        chosen = set(map(id, weights))
        self._optimizer = optimizer
        self._weights = [
            [weight for weight in group["params"] if id(weight) in chosen] for group in optimizer.param_groups
        ]
        inner = list(nested_optimizers(optimizer))[1:]
        self._inner = {id(each): PartOfOptimizer(each, weights) for each in inner}

    def step(self) -> None:
        """Update the weights that have a gradient.

        Raises:
            MembenchError: the optimizer has got a hook on its step since it was divided.
        """
        if runs_hooks(self._optimizer):
            raise MembenchError(
                f"{type(self._optimizer).__name__} has got a hook on its step, which expects all weights at once; "
                "compile the step again, or add the hook before"
            )
        view, take_back = self.view()
        type(view).step(view)
        take_back()
        note_optimizer_step(self._optimizer)

    def view(self) -> tuple[torch.optim.Optimizer, Callable[[], None]]:
        """Return a view, and what hands the attributes that it has got since then on to the optimizer."""
        view: torch.optim.Optimizer = object.__new__(type(self._optimizer))
        handed_on: list[Callable[[], None]] = []

        def of_leaf(leaf: Any) -> Any:
            if id(leaf) not in self._inner:
                return leaf
            inner, take_back = self._inner[id(leaf)].view()
            handed_on.append(take_back)
            return inner

        given = without_hooks(vars(self._optimizer))
        if self._inner:
            given |= {name: tree_map(of_leaf, each) for name, each in given.items() if name not in _OPTIMIZER_STATE}
        groups = zip(self._optimizer.param_groups, self._weights, strict=False)
        given["param_groups"] = [{**group, "params": list(weights)} for group, weights in groups]
        vars(view).update(given)

        def take_back() -> None:
            for hand_on in handed_on:
                hand_on()
            for name, value in vars(view).items():
                if name not in given or value is not given[name]:
                    setattr(self._optimizer, name, value)

        return view, take_back


def described_update(
    name: str, optimizer: str, gradients: str = "freed", in_backward: bool = False, ema: bool = False, **options: Any
) -> WeightUpdate:
    """Return the update that a file of ``conf/optimizer`` describes.

    Args:
        optimizer: the class's full name, ``"torch.optim.AdamW"``.
        options: options of the class; None: its default.

    Raises:
        MembenchError: the class's package is not installed, or a value is not allowed.
    """
    package = optimizer.partition(".")[0]
    if find_spec(package) is None:
        raise MembenchError(f"optimizer {name!r} is of {package}, which is not installed: pip install {package}")
    make: Make = find_target(optimizer, torch.optim.Optimizer)
    given = {key: value for key, value in options.items() if value is not None}
    check(SWITCH, **{key: value for key, value in given.items() if key in ("foreach", "fused")})
    if "betas" in given:
        given["betas"] = tuple(given["betas"])
    return WeightUpdate(
        partial(make, **given), Gradients(choice(Gradients, "gradients", gradients)), in_backward, ema, name
    )
