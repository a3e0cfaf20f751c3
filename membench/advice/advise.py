"""The library entry `membench.advise`: does a step fit a device, how large may its batch be, which method is the fastest?"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, overload

import torch
from torch import Tensor, nn

from membench.advice.advice import Advice, AdvisedPlan, Refusal
from membench.advice.advise_cluster import advise_cluster
from membench.advice.batches import Batches
from membench.advice.changes import AS_IT_IS, NO_CHANGES, ModuleChanges
from membench.advice.cluster_advice import ClusterAdvice
from membench.advice.levers import Levers, sharded_bytes
from membench.advice.methods import Methods
from membench.advice.planning import PlainNumbers, Target
from membench.advice.processes import Planners
from membench.advice.programs import Programs
from membench.advice.regions import SameMemory, SameTime, recomputes
from membench.advice.trust import trusts
from membench.advice.work import Work
from membench.core import configuration
from membench.core.cluster import Cluster
from membench.core.device import DeviceProfile, as_device
from membench.core.fully_sharded import check_whole
from membench.core.machine import Machine
from membench.core.optimizer import WeightUpdate
from membench.core.task_graph import Mode, TaskGraph
from membench.core.workload import Workload
from membench.cost.roofline import RooflineCost
from membench.planning.memory.holders import activations_at_peak_bytes
from membench.planning.rewrites.update import add_update
from membench.steps.arguments import (
    OptimizerLike,
    as_bytes,
    as_machine,
    as_strategy,
    as_update,
    workload_of,
)
from membench.steps.compile import compile  # noqa: A004 (the field's word for it)
from membench.steps.parallel.tensor_parallel import Plan
from membench.steps.plan import Runs, plan_step
from membench.steps.predicted.fused_graphs import compiled_parts
from membench.steps.predicted.prediction import Prediction, predicted
from membench.steps.predicted.simulated_step import SimulatedStep, simulated_step
from membench.strategies.base import strategies
from membench.strategies.pytorch import PyTorch
from membench.sweep.this_device import THIS, this_device

LEFT_OUT = {
    "auto": "chooses among the others",
    "best_fit": "eager execution in another allocator's memory",
    "network_wide": "holds more than eager execution",
    "serial_csr": "depends on the activations' densities",
}
"""Methods that are not planned unless they are named, and why."""

THREADS = 16
"""That wait for processes at the same time, in addition to two for each method."""


@overload
def advise(
    module: nn.Module,
    loss: Callable[..., Tensor] | None,
    batch: tuple[Any, Any],
    *,
    device: str | DeviceProfile,
    precision: str | None = None,
    optimizer: OptimizerLike = None,
    budget: str | float | None = None,
    machine: str | Machine | None = None,
    host_memory: str | float | None = None,
    channels_last: bool = False,
    methods: Sequence[str] | None = None,
    largest: str = "all",
    levers: bool = True,
    processes: int | None = None,
    time_limit_s: float | None = None,
    progress: bool = False,
    kernels: str | None = None,
    allocator: str | None = None,
) -> Advice: ...


@overload
def advise(
    module: nn.Module,
    loss: Callable[..., Tensor] | None,
    batch: tuple[Any, Any],
    *,
    cluster: str | Cluster,
    nodes: int = 1,
    device: str | DeviceProfile | None = None,
    precision: str | None = None,
    optimizer: OptimizerLike = None,
    machine: str | Machine | None = None,
    batch_size: int | None = None,
    parallel: Mapping[str, int] | None = None,
    checkpointing: Sequence[str] | None = None,
    wrapped: Sequence[str] | None = None,
    reduce_dtype: torch.dtype | None = None,
    tensor_parallel: Plan | None = None,
    kernels: str | None = None,
    allocator: str | None = None,
    processes: int | None = None,
    progress: bool = False,
) -> ClusterAdvice: ...


def advise(
    module: nn.Module,
    loss: Callable[..., Tensor] | None,
    batch: tuple[Any, Any],
    *,
    cluster: str | Cluster | None = None,
    **options: Any,
) -> Advice | ClusterAdvice:
    """Return whether a step fits a device, how large its batch may be, every method with which it fits, and else what would help.

    Nothing is allocated: module and batch may be on the meta device, and weights elsewhere are only read. Methods are planned
    in parallel, in processes that receive the graph of the step.

    Args:
        module, loss, batch: see `membench.compile`.
        device: a name (``"rtx3090"``), a profile, or ``"this"`` for the GPU at hand.
        precision, optimizer, machine, host_memory, channels_last, allocator: see `membench.predict`.
        budget: the most that the step's tensors may hold, ``"20 GB"`` or a number of bytes; None: what the device has.
        methods: names of strategies; None: all but `LEFT_OUT`.
        largest: whose largest batch is searched for: ``"all"`` methods', ``"plain"`` PyTorch's alone, or ``"none"``.
        levers: where plain PyTorch does not fit, predict changes to optimizer, precision and batch with which it would.
        processes: how many plan; None: one for each processor.
        time_limit_s: where plain PyTorch does not fit, leave out methods whose plans take longer, in processor time of each
            process; None: wait for all.
        progress: show on stderr what is done.
        kernels: ``"eager"``, ``"inductor"`` or None, see `membench.predict`; every method is planned over these.

    With a cluster it is `membench.advice.advise_cluster.advise_cluster`, whose arguments are described there.

    Raises:
        UnsupportedModel: the module cannot be captured; names the layer.
        MembenchError: an argument is invalid.
    """
    if cluster is not None:
        return advise_cluster(module, loss, batch, cluster=cluster, **options)
    return _advise_device(module, loss, batch, **options)


def _advise_device(
    module: nn.Module,
    loss: Callable[..., Tensor] | None,
    batch: tuple[Any, Any],
    *,
    device: str | DeviceProfile,
    precision: str | None = None,
    optimizer: OptimizerLike = None,
    budget: str | float | None = None,
    machine: str | Machine | None = None,
    host_memory: str | float | None = None,
    channels_last: bool = False,
    kernels: str | None = None,
    allocator: str | None = None,
    **asked: Any,
) -> Advice:
    """Return the advice on one device; see `advise`, and `Adviser.advice` for the other options."""
    check_whole(module)
    adviser = Adviser(
        workload_of(module, loss, batch, precision=precision, channels_last=channels_last),
        as_device(this_device() if device == THIS else device, allocator),
        as_bytes(budget),
        as_update(optimizer),
        None if machine is None else as_machine(machine),
        as_bytes(host_memory, "host_memory"),
        kernels=kernels,
    )
    return adviser.advice(**asked)


class Adviser:
    """A step on a device, and what is asked of it.

    Args:
        workload: on any device, ``meta`` included; its tensors are only read.
        budget_bytes, update, machine, host_memory_bytes: see `membench.predict`.
        modules: changes of the module that its maker offers as levers.
        kernels: see `membench.predict`.
    """

    def __init__(
        self,
        workload: Workload,
        device: DeviceProfile,
        budget_bytes: int | None = None,
        update: WeightUpdate | None = None,
        machine: Machine | None = None,
        host_memory_bytes: int | None = None,
        modules: ModuleChanges = NO_CHANGES,
        kernels: str | None = None,
    ) -> None:
        framework = configuration.load("framework", "pytorch")
        cost = RooflineCost(device, framework.efficiency, as_machine(machine, host_memory_bytes))
        known, self._compiled_parts = compiled_parts(workload.module, workload.loss, kernels)
        workload = replace(workload, compiled=known)
        self._workload, self._by, self._kernels = workload, update, kernels
        self._machine, self._host_memory_bytes = machine, host_memory_bytes
        self._programs = Programs(
            workload, update, framework.captured_on, modules, device.allocator, self._compiled_parts
        )
        self._target = Target(device, cost, budget_bytes, self._programs.update(AS_IT_IS))

    def advice(
        self,
        methods: Sequence[str] | None = None,
        *,
        largest: str = "all",
        levers: bool = True,
        processes: int | None = None,
        time_limit_s: float | None = None,
        progress: bool = False,
    ) -> Advice:
        """Return the advice; see `advise`."""
        size, target = self._workload.batch_size, self._target
        chosen = [as_strategy(name) for name in (self._all_methods() if methods is None else methods)]
        # the planners end first, and with them what the work waits for
        with (
            Work(THREADS + 2 * len(chosen), progress=progress) as work,
            Planners(self._programs.graphs, processes) as planners,
        ):
            captured = planners.share(size)
            graph = add_update(captured, target.update)
            batches = Batches(planners, graph, target)
            asked = Methods(work, planners, batches, graph, target)
            asked.begin([strategy for strategy in chosen if strategy.moves_weights])  # which takes longest
            runs = self._plain(captured)
            plain = predicted(runs, simulated_step(runs, target.cost), target.device)
            if not (fits := not target.excess_bytes(runs)) and time_limit_s is not None:
                planners.limit(time_limit_s)
            search = Levers(work, planners, self._programs, size, target, PlainNumbers.of(runs, target))
            of_levers = None if fits or not levers else work.start(search.found)
            of_plain = work.start(batches.plain) if largest != "none" else None
            of_program = self._in_place_of_regions(work, planners, plain) if fits else {}
            outcomes = asked.outcomes(chosen, search=largest == "all")
            found = {
                "levers": of_levers.result() if of_levers else (),
                "largest_batch": of_plain.result() if of_plain else None,
                **{name: self._bound(future.result()) for name, future in of_program.items()},
            }
        found |= {"fits": fits, "not_tried": search.not_tried(), "recomputes": recomputes(captured)}
        return self._answer(runs, plain, outcomes, **found)

    def _answer(
        self, runs: Runs, plain: Prediction, outcomes: Mapping[str, AdvisedPlan | Refusal], **found: Any
    ) -> Advice:
        workload, target = self._workload, self._target
        plans = [each for each in outcomes.values() if isinstance(each, AdvisedPlan)]
        return Advice(
            model=workload.name,
            precision=None if workload.precision is None else str(workload.precision),
            optimizer=None if self._by is None else self._by.name,
            update_runs=self._by is None or self._by.runs,
            channels_last=workload.channels_last,
            is_compiled=self._compiled_parts is not None,
            plain=plain,
            machine=None if self._machine is None else self._machine.name,
            host_memory_bytes=self._host_memory_bytes,
            allocator=str(target.device.allocator),
            budget_bytes=target.budget_bytes,
            activations_bytes=activations_at_peak_bytes(runs[0].schedule),
            plans=tuple(self._bound(each) for each in ranked(plans)),
            refused={name: each for name, each in outcomes.items() if isinstance(each, Refusal)},
            trust=trusts(workload.name, target.device.name),
            trains=workload.trains,
            sharded_bytes={} if found["fits"] else sharded_bytes(runs[-1].schedule.graph),
            **found,
        )

    def _bound(self, plan: AdvisedPlan | None) -> Any:
        """Return a plan that can be compiled."""
        return plan and replace(plan, _step=self._compiled)

    def simulated(self, plan: AdvisedPlan) -> SimulatedStep:
        """Return the step of one of the advice's plans, simulated on the device."""
        step: SimulatedStep = plan.compile("simulated", device=self._target.device)
        return step

    def _all_methods(self) -> list[str]:
        mode = Mode.TRAINING if self._workload.loss else Mode.INFERENCE
        return [name for name in strategies(mode) if name not in LEFT_OUT]

    def _plain(self, captured: TaskGraph) -> Runs:
        target, size = self._target, captured.batch_size
        return plan_step(lambda _: captured, size, PyTorch(), target.cost, None, update=target.update)

    def _in_place_of_regions(
        self, work: Work, planners: Planners, program: Prediction
    ) -> dict[str, Future[AdvisedPlan | None]]:
        """Start the plans in place of the program's own recomputation; none for a program without it."""
        size = program.batch_size
        if not recomputes(planners.graph(size, size)):
            return {}
        taken = program.allocated_bytes, program.step_time_s
        return {
            name: work.start(planners.run, job(self._target, size, *taken), size)
            for name, job in (("in_its_memory", SameMemory), ("in_its_time", SameTime))
        }

    def _compiled(self, **options: Any) -> Any:
        workload = self._workload
        fixed: dict[str, Any] = {
            "optimizer": self._by,
            "precision": workload.precision,
            "channels_last": workload.channels_last,
            "host_memory": self._host_memory_bytes,
            "kernels": self._kernels,
        }
        if options["backend"] == "simulated":
            fixed["machine"] = self._machine
        return compile(
            workload.module, workload.loss, (workload.inputs, workload.targets), **{**fixed, **options}
        )


def ranked(plans: Sequence[AdvisedPlan]) -> list[AdvisedPlan]:
    """Return plans with the fastest first; of those within a thousandth plain PyTorch, then that with the lowest peak."""
    fastest_s = min((plan.step_time_s for plan in plans), default=1.0)
    return sorted(
        plans,
        key=lambda plan: (round(plan.step_time_s / fastest_s, 3), plan.name != PyTorch.name, plan.peak_bytes),
    )
