"""`membench.advise`: does a step fit a device, how large may its batch be, which method is the fastest?"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypedDict, Unpack, overload

from torch import Tensor, nn

from membench.advice.cluster.advice import ClusterAdvice
from membench.advice.cluster.advise import ClusterKeywords, advise_cluster
from membench.advice.device.advice import Advice, AdvisedPlan, Refusal
from membench.advice.device.batches import Batches
from membench.advice.device.changes import AS_IT_IS, NO_CHANGES, ModuleChanges
from membench.advice.device.levers import Levers, sharded_bytes
from membench.advice.device.methods import Methods
from membench.advice.device.planning import PlainNumbers, Target
from membench.advice.device.processes import Planners
from membench.advice.device.programs import Programs
from membench.advice.device.regions import SameMemory, SameTime, recomputes
from membench.advice.pool.work import Work
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.graph.task_graph import Mode, TaskGraph
from membench.core.hardware.cluster import Cluster
from membench.core.hardware.device import DeviceProfile, as_device
from membench.core.hardware.machine import Machine
from membench.core.step.fully_sharded import check_whole
from membench.core.step.optimizer import Gradients
from membench.core.step.workload import Workload
from membench.cost.roofline import RooflineCost
from membench.planning.memory.holders import activations_at_peak_bytes
from membench.planning.rewrites.update import add_update
from membench.steps.arguments import Batch, as_bytes, as_machine, as_strategy, in_process, names_of, workload_of
from membench.steps.compile import compile  # noqa: A004 (the field's word for it)
from membench.steps.keywords import (
    HardwareKeywords,
    LoopKeywords,
    ProcessKeywords,
    StepKeywords,
    check_is_module,
    check_keywords,
    takes,
    workload_options,
)
from membench.steps.plan import Runs
from membench.steps.predicted.fused_graphs import compiled_parts
from membench.steps.predicted.prediction import Prediction, predicted, unpredicted_settings
from membench.steps.request import StepRequest
from membench.steps.simulated_step import SimulatedStep, simulated_step
from membench.strategies.base import strategies
from membench.strategies.pytorch import PyTorch
from membench.sweep.this_device import this_device

LEFT_OUT = {
    "auto": "chooses among the others",
    "best_fit": "eager execution in another allocator's memory",
    "by_module": "the user names its modules",
    "network_wide": "holds more than eager execution",
    "serial_csr": "depends on the activations' densities",
}
"""Methods that are not planned unless they are named, and why."""

ALL = "all"
"""In place of names: all methods but these."""

THREADS = 16
"""That wait for processes at the same time, in addition to two for each method."""


class AnswerKeywords(TypedDict, total=False):
    """How the answer is made.

    Attributes:
        methods: names of strategies, or ``"all"`` but `LEFT_OUT`. None: plain PyTorch alone where it fits, otherwise
            all.
        largest: whose largest batch is searched for: ``"all"`` methods', ``"plain"`` PyTorch's alone, or ``"none"``.
        levers: where plain PyTorch does not fit, predict changes to optimizer, precision and batch with which it would.
        processes: how many plan; None: one for each processor.
        time_limit_s: where plain PyTorch does not fit, leave out methods whose plans take longer, in processor time of
            each process; None: wait for all.
        progress: show on stderr what is done.
    """

    methods: str | Sequence[str] | None
    largest: str
    levers: bool
    processes: int | None
    time_limit_s: float | None
    progress: bool


class AdviseKeywords(StepKeywords, LoopKeywords, HardwareKeywords, ProcessKeywords, AnswerKeywords, total=False):
    """Options of `membench.advise` on one device, whose name may be ``"this"``, for the GPU at hand."""


@overload
def advise(
    module: nn.Module, loss: Callable[..., Tensor] | None, batch: Batch, **options: Unpack[AdviseKeywords]
) -> Advice: ...


@overload
def advise(
    module: nn.Module,
    loss: Callable[..., Tensor] | None,
    batch: Batch,
    *,
    cluster: str | Cluster,
    **options: Unpack[ClusterKeywords],
) -> ClusterAdvice: ...


@takes(AnswerKeywords, AdviseKeywords)
def advise(
    module: nn.Module,
    loss: Callable[..., Tensor] | None,
    batch: Batch,
    *,
    cluster: str | Cluster | None = None,
    **options: Any,
) -> Advice | ClusterAdvice:
    """Return whether a step fits a device, how large its batch may be, and every method with which it fits.

    Nothing is allocated: module and batch may be on the meta device, and weights elsewhere are only read. Methods are
    planned in parallel, in processes that receive the graph of the step. Where plain PyTorch does not fit, the answer
    names changes of the program with which it would.

    Args:
        module, loss, batch: see `membench.compile`.
        cluster: several GPUs: a name (``"dgx_h100"``) or a description; see `membench.advice.cluster.advise`.
        options: see `AdviseKeywords`; with a cluster `membench.advice.cluster.advise.ClusterKeywords`.

    Raises:
        UnsupportedModel: the module cannot be captured; names the layer.
        MembenchError: an argument is invalid.
    """
    check_is_module(module)
    if cluster is not None:
        return advise_cluster(module, loss, batch, cluster, options)
    if unused := {"strategy", "nodes"} & options.keys():
        raise MembenchError(
            f"{', '.join(sorted(unused))}: not an option of advise on one device, which plans all methods; leave it out"
        )
    check_keywords(AdviseKeywords, options, "advise")
    check_whole(module)
    device = this_device() if options.get("device") == "this" else options.get("device")
    machine = options.get("machine")
    adviser = Adviser(
        workload_of(module, loss, batch, **workload_options(options)),
        in_process(as_device(device), options),
        StepRequest.of(options, PyTorch.name),
        None if machine is None else as_machine(machine),
        as_bytes(options.get("host_memory"), "host_memory"),
    )
    return adviser.advice(**{name: value for name, value in options.items() if name in AnswerKeywords.__annotations__})


class Adviser:
    """A step on a device, and what is asked of it.

    Args:
        workload: on any device, ``meta`` included; its tensors are only read.
        request: its budget, update and kernels; its strategy is none of the answer.
        machine, host_memory_bytes: None: see `membench.predict`.
        modules: changes of the module that its maker offers as levers.
    """

    def __init__(
        self,
        workload: Workload,
        device: DeviceProfile,
        request: StepRequest,
        machine: Machine | None = None,
        host_memory_bytes: int | None = None,
        modules: ModuleChanges = NO_CHANGES,
    ) -> None:
        if request.optimizer and request.optimizer.gradients is Gradients.FREED_LATE:
            raise MembenchError(
                "gradients='freed_late' is of plain PyTorch's program alone, as methods free gradients themselves; ask "
                "membench predict, or leave it out"
            )
        framework = configuration.load("framework", "pytorch")
        cost = RooflineCost(device, framework.efficiency, as_machine(machine, host_memory_bytes))
        known, self._compiled_parts = compiled_parts(workload.module, workload.loss, request.kernels)
        workload = replace(workload, compiled=known)
        self._workload, self._request = workload, request
        self._machine, self._host_memory_bytes = machine, host_memory_bytes
        self._programs = Programs(
            workload, request.optimizer, framework.captured_on(device), modules, device.allocator, self._compiled_parts
        )
        self._target = Target(device, cost, request.budget_bytes, self._programs.update(AS_IT_IS))

    def advice(
        self,
        methods: str | Sequence[str] | None = None,
        *,
        largest: str = "all",
        levers: bool = True,
        processes: int | None = None,
        time_limit_s: float | None = None,
        progress: bool = False,
        begun: Callable[[Advice], None] | None = None,
        found_plan: Callable[[AdvisedPlan], None] | None = None,
    ) -> Advice:
        """Return the advice; see `advise`.

        Args:
            begun: gets what is known once plain PyTorch is planned.
            found_plan: gets the plan of each method that fits, once it is made; its largest batch is not known yet.
        """
        size, target = self._workload.batch_size, self._target
        chosen = [as_strategy(name) for name in self._names(methods)]
        # the planners end first, and with them what the work waits for
        with (
            Work(THREADS + 2 * len(chosen), progress=progress) as work,
            Planners(self._programs.graphs, processes) as planners,
        ):
            if methods is not None:
                planners.start()
            captured = planners.share(size)
            runs = self._plain(captured)
            plain = self._predicted(runs, captured)
            fits = not target.excess_bytes(runs)
            known: dict[str, Any] = {"fits": fits, "recomputes": recomputes(captured)}
            if begun:
                begun(self._answer(runs, plain, {}, **known))
            if methods is None and fits and not known["recomputes"]:
                chosen = [PyTorch()]
            else:
                planners.start()
            if not fits and time_limit_s is not None:
                planners.limit(time_limit_s)
            graph = add_update(captured, target.update)
            batches = Batches(planners, graph, target)
            asked = Methods(work, planners, batches, graph, target)
            asked.begin([strategy for strategy in chosen if strategy.moves_weights])  # which takes longest
            search = Levers(work, planners, self._programs, size, target, PlainNumbers.of(runs, target))
            of_levers = work.start(search.faster if fits else search.found) if levers else None
            of_plain = work.start(batches.plain) if largest != "none" else None
            of_program = self._in_place_of_regions(work, planners, plain) if fits else {}
            outcomes = asked.outcomes(chosen, search=largest == "all", found_plan=found_plan)
            found = {
                "levers": of_levers.result() if of_levers else (),
                "largest_batch": of_plain.result() if of_plain else None,
                **{name: self._bound(future.result()) for name, future in of_program.items()},
            }
        found |= {"not_tried": search.not_tried(), **known}
        return self._answer(runs, plain, outcomes, **found)

    def _predicted(self, runs: Runs, captured: TaskGraph) -> Prediction:
        """Return the prediction of plain PyTorch, with what of torch's settings is not in it."""
        of_compiler = self._compiled_parts.unpredicted if self._compiled_parts else ()
        settings = unpredicted_settings(captured, self._target.device.allocator)
        prediction = predicted(runs, simulated_step(runs, self._target.cost), self._target.device)
        named = names_of(self._workload, self._request.optimizer)
        return replace(prediction, unpredicted=(*of_compiler, *settings), **named)

    def _answer(
        self, runs: Runs, plain: Prediction, outcomes: Mapping[str, AdvisedPlan | Refusal], **found: Any
    ) -> Advice:
        workload, target, by = self._workload, self._target, self._request.optimizer
        plans = [each for each in outcomes.values() if isinstance(each, AdvisedPlan)]
        return Advice(
            model=workload.name,
            precision=None if workload.precision is None else str(workload.precision),
            optimizer=None if by is None else by.name,
            update_runs=by is None or by.runs,
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

    def _names(self, methods: str | Sequence[str] | None) -> Sequence[str]:
        if methods is not None and ALL not in methods:
            return [methods] if isinstance(methods, str) else methods
        mode = Mode.TRAINING if self._workload.loss else Mode.INFERENCE
        return [name for name in strategies(mode) if name not in LEFT_OUT]

    def _plain(self, captured: TaskGraph) -> Runs:
        return self._target.planner(lambda _: captured, captured.batch_size, PyTorch()).within(None)

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
            "optimizer": self._request.optimizer,
            "precision": workload.precision,
            "channels_last": workload.channels_last,
            "host_memory": self._host_memory_bytes,
            "kernels": self._request.kernels,
        }
        if options["backend"] == "simulated":
            fixed["machine"] = self._machine
        return compile(workload.module, workload.loss, (workload.inputs, workload.targets), **{**fixed, **options})


def ranked(plans: Sequence[AdvisedPlan]) -> list[AdvisedPlan]:
    """Return plans, the fastest first; within a thousandth plain PyTorch first, then by peak."""
    fastest_s = min((plan.step_time_s for plan in plans), default=0) or 1.0  # nothing runs without operators
    return sorted(
        plans, key=lambda plan: (round(plan.step_time_s / fastest_s, 3), plan.name != PyTorch.name, plan.peak_bytes)
    )
