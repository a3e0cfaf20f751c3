"""Changes to a program that lower its memory: allocator, optimizer, precision, batch, and module."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from inspect import signature
from itertools import permutations
from typing import Any

import torch

from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.graph.precision import Precision
from membench.core.hardware.allocator import AllocatorSettings
from membench.core.step.kernels import WHOLE_STEP, Compiled
from membench.core.step.optimizer import Gradients, WeightUpdate
from membench.core.step.workload import Workload


class Kind(StrEnum):
    """The part of a program that changes; of changes of one kind only one is made."""

    ALLOCATOR = "allocator"
    UPDATE = "update"
    STATES = "states"
    BATCH = "batch"
    PRECISION = "precision"
    CHECKPOINTING = "checkpointing"
    ADAPTERS = "adapters"
    KERNELS = "kernels"


@dataclass(frozen=True)
class Change:
    """A change to a program.

    Attributes:
        options: options of the command line.
        effect: what it does to the program and its results.
        excludes: kinds of changes with which it is not combined.
        is_exact: whether the step computes what it did, but for the order of sums.
        keeps_weights: whether the step still has all the weights that it has without it.
        is_last_resort: it is tried where no other change suffices.
        update, workload: make it, if it is of the optimizer or the precision; a change of the module has neither.
        compiled: what it gives to `torch.compile`; None: nothing.
        allocator: settings that it gives to PyTorch's allocator; None: it leaves them.
        micro_batch: samples at a time; None: all.
    """

    name: str
    kind: Kind
    options: tuple[str, ...]
    effect: str
    excludes: frozenset[Kind] = frozenset()
    is_exact: bool = False
    update: Callable[[WeightUpdate], WeightUpdate] | None = None
    workload: Callable[[Workload], Workload] | None = None
    compiled: Compiled | None = None
    allocator: AllocatorSettings | None = None
    micro_batch: int | None = None
    keeps_weights: bool = False
    is_last_resort: bool = False

    @property
    def is_captured(self) -> bool:
        """Whether it changes the operators of the step, and not only its update or its division."""
        return self.kind in (Kind.PRECISION, Kind.CHECKPOINTING, Kind.ADAPTERS, Kind.KERNELS)


Changes = frozenset[Change]
"""That are made together."""

COMPILED = "torch.compile"
"""Name of the change to compiled kernels, which compute the same but for rounding."""

AS_IT_IS: Changes = frozenset()


@dataclass(frozen=True)
class ModuleChanges:
    """Changes of a module that are made by building it anew.

    Attributes:
        changes: those that can be made.
        build: returns the workload with some of them, by name.
    """

    changes: tuple[Change, ...] = ()
    build: Callable[[frozenset[str]], Workload] | None = None


NO_CHANGES = ModuleChanges()
"""Of a module whose maker is not known."""


def are_compatible(changes: Iterable[Change]) -> bool:
    """Return whether changes can be made together."""
    return not any(one.kind is other.kind or other.kind in one.excludes for one, other in permutations(changes, 2))


def changes_of(
    workload: Workload, by: WeightUpdate | None, allocator: AllocatorSettings, *, is_compiled: bool
) -> Iterator[Change]:
    """Yield the changes that lower the memory of a step and need no other module, the least far-reaching first.

    Args:
        is_compiled: a part of the step was given to `torch.compile`.
    """
    if not allocator.expandable_segments:
        expandable = AllocatorSettings(expandable_segments=True)
        yield Change(
            "expandable segments",
            Kind.ALLOCATOR,
            (f"allocator={expandable}",),
            "less is reserved and not used; in a program PYTORCH_ALLOC_CONF, before CUDA starts",
            allocator=expandable,
            is_exact=True,
        )
    if by is not None:
        yield from _of_update(by)
    if not is_compiled:
        yield Change(
            COMPILED,
            Kind.KERNELS,
            ("kernels=inductor",),
            "fused kernels, which round differently and draw other random numbers; needs time to compile",
            compiled=WHOLE_STEP,
        )
    weights = [weight for weight in workload.module.parameters() if weight.is_floating_point()]
    is_single = any(weight.dtype is torch.float32 for weight in weights)
    if is_single and workload.precision not in (Precision.BF16, Precision.FP16):
        yield Change(
            "weights in bf16",
            Kind.PRECISION,
            ("precision=bf16",),
            "weights, gradients and states have 16 bits; small updates are rounded away",
            workload=partial(replace, precision=Precision.BF16),
        )
    if workload.batch_size > 1 and workload.loss is not None:
        yield Change(
            "micro-batches of 1",
            Kind.BATCH,
            ("micro_batch=1",),
            "gradients add up over the samples, one at a time",
            micro_batch=1,
            is_exact=True,
        )


def _of_update(by: WeightUpdate) -> Iterator[Change]:
    made = _class_of(by)
    if made is None:
        return
    make, options = made
    if "fused" in signature(make).parameters and not options.get("fused") and not by.in_backward:
        fused = partial(make, **{**options, "foreach": None, "fused": True})
        yield Change(
            "fused update",
            Kind.UPDATE,
            ("optimizer.fused=true",),
            "one kernel updates all weights, without temporaries",
            frozenset({Kind.STATES, Kind.ADAPTERS}),
            is_exact=True,
            update=partial(replace, optimizer=fused),
        )
    if by.gradients is Gradients.FREED and not by.in_backward:
        yield Change(
            "update in the backward pass",
            Kind.UPDATE,
            ("optimizer.in_backward=true",),
            "each weight is updated once its gradient is final: no clipping by the norm of all gradients",
            frozenset({Kind.BATCH, Kind.ADAPTERS}),
            is_exact=True,
            update=partial(replace, in_backward=True),
        )
    if make in (torch.optim.Adam, torch.optim.AdamW) and (name := _with_8_bits()):
        optimizer = configuration.load("optimizer", name).optimizer
        yield Change(
            "states in 8 bits",
            Kind.STATES,
            (f"optimizer={name}",),
            "the optimizer's states are rounded to 8 bits",
            frozenset({Kind.ADAPTERS}),
            update=partial(replace, optimizer=optimizer, name=name),
        )


def _class_of(by: WeightUpdate) -> tuple[Any, dict[str, Any]] | None:
    """Return the class of an optimizer and its options; None where an instance is more than that."""
    if isinstance(by.optimizer, partial):
        return by.optimizer.func, dict(by.optimizer.keywords)
    if not isinstance(by.optimizer, torch.optim.Optimizer):
        return by.optimizer, {}
    if len(by.optimizer.param_groups) > 1 or type(by.optimizer).__module__.partition(".")[0] != "torch":
        return None
    known = signature(type(by.optimizer)).parameters
    return type(by.optimizer), {name: value for name, value in by.optimizer.defaults.items() if name in known}


def _with_8_bits() -> str | None:
    """Return the name of an AdamW with states of 8 bits whose package is installed."""
    for name in ("adamw8bit", "torchao_adamw8bit"):
        try:
            configuration.load("optimizer", name)
        except MembenchError:
            continue
        return name
    return None
