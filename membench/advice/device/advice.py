"""The nouns of an advice, all of them simulated numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from membench.advice.device.changes import COMPILED
from membench.core.errors import MembenchError
from membench.core.result import Result
from membench.core.units import per_second
from membench.steps.predicted.intervals import TIME, Interval, ratios_of
from membench.steps.predicted.prediction import Prediction
from membench.strategies.pytorch import PyTorch

PLAIN = PyTorch.name
"""Name of plain PyTorch among the strategies."""


def _not_bound(**_: Any) -> Any:
    raise MembenchError("this plan was not made by membench.advise, which knows the module")


@dataclass(frozen=True)
class AdvisedPlan:
    """A method that fits, and what it takes.

    Attributes:
        name: the strategy's name.
        peak_bytes: the most that the step's tensors hold.
        reserved_bytes, used_bytes: see `membench.Prediction`.
        budget_bytes: with which it was planned; None: it fits without one.
        copied_bytes: to the host and back.
        exposed_copy_time_s: time for which copies ran and no task did.
        host_bytes: page-locked host memory that the copies need.
        micro_batch: with which it was planned; None: as the method chooses.
        micro_batches: samples of the parts in which the batch is computed, with the number of such parts.
        gap: by what share the step exceeds the lower bound on its time; None: the method states no bound.
        is_exact: whether results are plain PyTorch's: nothing is rounded, and batch norm takes the statistics of the
            whole batch.
        is_idle: whether the method changes nothing at this size: nothing is offloaded, recomputed or encoded.
        moves_weights: whether weights, gradients or states are kept in host memory while they are not used.
        divides_batch: whether the method divides a batch into micro-batches by itself, so that any fits.
        largest_batch: a batch that was planned and fits, the largest found, within a part in 16 of the largest; of
            plain PyTorch the largest, undivided. None: not searched for, or none found, or any.
        larger_may_fit: the largest batch is one of plans without a budget, which a search under a budget may exceed.
    """

    name: str
    batch_size: int
    peak_bytes: int
    reserved_bytes: int
    used_bytes: int | None
    budget_bytes: int | None
    step_time_s: float
    copied_bytes: int
    exposed_copy_time_s: float
    host_bytes: int
    micro_batch: int | None
    micro_batches: tuple[tuple[int, int], ...]
    gap: float | None
    is_exact: bool
    is_idle: bool
    moves_weights: bool = False
    divides_batch: bool = False
    largest_batch: int | None = None
    larger_may_fit: bool = False
    _step: Callable[..., Any] = field(default=_not_bound, repr=False, compare=False)

    @property
    def samples_per_s(self) -> float:
        return per_second(self.batch_size, self.step_time_s)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `membench.compile` that choose this plan."""
        limits = {"budget": self.budget_bytes, "micro_batch": self.micro_batch}
        return {"strategy": self.name, **{name: value for name, value in limits.items() if value is not None}}

    def compile(self, backend: str = "cuda", **changed: Any) -> Any:
        """Return the step of this plan; see `membench.compile`.

        Args:
            backend: where it is to run; a simulated step needs a `device` among the changes, and is in the advice's
                machine.
            changed: further arguments of `membench.compile`.
        """
        return self._step(**{"backend": backend, **self.options, **changed})


@dataclass(frozen=True)
class Refusal:
    """A method that does not fit, or cannot schedule the step.

    Attributes:
        needed_bytes: the least that it needs; None: it cannot schedule the step, or was not planned in time.
        lower_bound_bytes: the least that any schedule needs; None: not known.
        largest_batch: see `AdvisedPlan`.
        is_planned: whether the method was asked; otherwise `needed_bytes` is a lower bound, which exceeds the memory.
        is_fragmented: the memory has room for what a plan of it holds, and not for what PyTorch's allocator reserves.
    """

    reason: str
    needed_bytes: int | None
    lower_bound_bytes: int | None = None
    largest_batch: int | None = None
    is_planned: bool = True
    is_fragmented: bool = False


@dataclass(frozen=True)
class Lever:
    """Changes to a program under plain PyTorch, and the step that they make.

    Attributes:
        names: the changes' names.
        options: options of the command line that make the changes.
        effects: what they do to the program and its results.
        is_exact: whether results stay the same, but for the order of sums.
        fits: on the device, within the budget.
        peak_bytes: the most that the step's tensors hold; without a step time the least that they can hold.
        step_time_s: None: not predicted, because it cannot fit.
    """

    names: tuple[str, ...]
    options: tuple[str, ...]
    effects: tuple[str, ...]
    is_exact: bool
    fits: bool
    peak_bytes: int
    step_time_s: float | None


@dataclass(frozen=True)
class Advice(Result, text="membench.advice.device.text", picture="membench.advice.device.page"):
    """Whether a step fits a device under plain PyTorch, and the methods with which it fits.

    Attributes:
        model: name of the module.
        update_runs: whether steps that run can update the weights so.
        plain: the step under plain PyTorch.
        channels_last: memory format of the step.
        is_compiled: a part of the step was given to `torch.compile`.
        machine: name of the machine that the device is in; None: none was chosen.
        host_memory_bytes: the most that the step may hold in host memory; None: what the machine has.
        allocator: settings of PyTorch's caching allocator that were chosen; empty: none.
        budget_bytes: the most that the step's tensors may hold; None: what the device has.
        fits: whether plain PyTorch keeps the budget and the device has the memory.
        parts_bytes: what plain PyTorch's allocated peak consists of.
        activations_bytes: size of the activations at that peak, by layer.
        fragmentation_bytes: what the caching allocator reserves in addition to the allocated peak.
        besides_bytes: memory in use besides the step: the device's context, and what else the process holds; None: not
            known.
        largest_batch: plain PyTorch's largest batch; None: not even one sample fits.
        plans: plans of the methods that fit, the fastest first; of those within a thousandth plain PyTorch, then that
            with the lowest peak.
        refused: why the others do not fit, by name.
        trains: whether the step computes gradients.
        recomputes: whether the program runs a part of the forward pass again, by `torch.utils.checkpoint`; plain
            PyTorch is the program as it is.
        in_its_memory: `joint` with the program's peak as its budget, for a program that recomputes.
        in_its_time: `joint` in the least memory found in which it takes no longer than that program.
        levers: changes to the program. Where plain PyTorch does not fit, each by itself, and if none suffices
            combinations of them; those that fit first, the fastest first. Where it fits, `torch.compile`.
        not_tried: changes that were not predicted, and why.
        sharded_bytes: weights, gradients and states of one GPU of several that share them evenly, by their number;
            arithmetic, without activations and buffers of communication. Empty where plain PyTorch fits.
    """

    model: str
    precision: str | None
    optimizer: str | None
    update_runs: bool
    channels_last: bool
    is_compiled: bool
    plain: Prediction
    budget_bytes: int | None
    fits: bool
    activations_bytes: Mapping[str, int]
    plans: tuple[AdvisedPlan, ...]
    refused: Mapping[str, Refusal]
    largest_batch: int | None = None
    trains: bool = True
    recomputes: bool = False
    in_its_memory: AdvisedPlan | None = None
    in_its_time: AdvisedPlan | None = None
    levers: tuple[Lever, ...] = ()
    not_tried: tuple[str, ...] = ()
    sharded_bytes: Mapping[int, int] = field(default_factory=dict)
    machine: str | None = None
    host_memory_bytes: int | None = None
    allocator: str = ""

    @property
    def device(self) -> str:
        return self.plain.device

    @property
    def batch_size(self) -> int:
        return self.plain.batch_size

    @property
    def capacity_bytes(self) -> int:
        """Memory of the device."""
        return self.plain.capacity_bytes

    @property
    def step_time_s(self) -> float:
        """Of plain PyTorch, on a device that has the memory if this one has not."""
        return self.plain.step_time_s

    def time_interval_s(self, plan: AdvisedPlan) -> Interval:
        """Return the bounds of a plan's step time; see `membench.Prediction.step_time_interval_s`."""
        kind = replace(self.plain.kind, copies=plan.copied_bytes > 0)
        return ratios_of(TIME, kind).interval(plan.step_time_s)

    @property
    def allocated_bytes(self) -> int:
        """The most that plain PyTorch's tensors and workspaces take."""
        return self.plain.allocated_bytes

    @property
    def reserved_bytes(self) -> int:
        """The most that plain PyTorch's caching allocator reserves for them."""
        return self.plain.reserved_bytes

    @property
    def used_bytes(self) -> int | None:
        """The most that nvidia-smi shows for plain PyTorch; None: the device's context is not known."""
        return self.plain.used_bytes

    @property
    def parts_bytes(self) -> Mapping[str, int]:
        return self.plain.parts_bytes

    @property
    def fragmentation_bytes(self) -> int:
        return self.plain.reserved_bytes - self.plain.allocated_bytes

    @property
    def besides_bytes(self) -> int | None:
        return None if self.used_bytes is None else self.used_bytes - self.reserved_bytes

    @property
    def best(self) -> AdvisedPlan | None:
        """The fastest plan that fits and gives plain PyTorch's results; None: there is none."""
        return next((plan for plan in self.plans if plan.is_exact), None)

    @property
    def fastest(self) -> AdvisedPlan | Lever | None:
        """The fastest way to compute the step that fits, `best` or a change to the program; None: there is none.

        Changes are those that compute the same, but for the order of sums and rounding within fused kernels.
        """
        levers = [each for each in self.levers if each.fits and (each.is_exact or each.names == (COMPILED,))]
        ways: list[AdvisedPlan | Lever] = [*([self.best] if self.best else []), *levers]
        return min(ways, key=lambda way: way.step_time_s or inf, default=None)

    @property
    def is_plain_alone(self) -> bool:
        """Whether no method but plain PyTorch was planned, because it fits."""
        return self.fits and not self.refused and [plan.name for plan in self.plans] == [PLAIN]

    @property
    def shown(self) -> AdvisedPlan | None:
        """The plan that is drawn: the best, or else the fastest."""
        return self.best or next(iter(self.plans), None)
