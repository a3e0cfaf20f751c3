"""The search for the fastest way to run a step on several GPUs.

    meshes -> bound on states -> programs, in numbers -> bounds on memory and time -> the least time first: captured, predicted -> ranked

A program, with one kind of checkpointing at one micro-batch, divided over some GPUs or not, serves all meshes. Its numbers are those of a
copy with few blocks (`Depth`); it is captured as a whole where a combination is predicted. Memory of samples is taken to be in proportion
to them for one decision alone: whether a larger micro-batch is looked at. A combination whose least time per sample exceeds that of `SHOWN`
predicted ones is not predicted, so that those are the fastest of all.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from heapq import heapify, heappop, heappush
from threading import Lock

import torch
from torch import Tensor, nn

from membench.advice.cluster_advice import AS_GIVEN, BLOCK_BY_BLOCK, ClusterAdvice, Nearest, RankPlan
from membench.advice.cluster_jobs import (
    Jobs,
    Program,
    Run,
    Step,
    Variant,
    captured,
    numbers_of,
    predicted,
    state_bytes,
)
from membench.advice.combinations import AXES, Axes, Combination, combinations, factorisations, micro_batches
from membench.advice.rank_bounds import least_rank_bytes, least_step_time_s, rank_states_bytes
from membench.advice.step_numbers import StepNumbers
from membench.advice.work import Work
from membench.advice.workers import Urgency
from membench.core.arguments import tensors_in
from membench.core.checks import COUNT, check
from membench.core.cluster import Cluster
from membench.core.device import DeviceProfile
from membench.core.errors import MembenchError
from membench.core.kernels import Compiled
from membench.core.machine import Machine
from membench.core.optimizer import WeightUpdate
from membench.core.pipeline import PIPELINED
from membench.core.workload import Workload
from membench.models.checkpointing import Checkpointing, blocks_of
from membench.steps.context_parallel import AXIS as CONTEXT
from membench.steps.fused_graphs import compiled_parts
from membench.steps.prediction import Prediction
from membench.steps.ranks import Ranks, ranks_of, repeated_classes, stage_begins
from membench.steps.tensor_parallel import AXIS as TENSOR
from membench.steps.tensor_parallel import Plan, plan_of

THREADS = 16
"""That wait for processes at the same time."""
SHOWN = 10
"""The fastest combinations, all of which are predicted."""
MOST_SAMPLES = 1 << 10
"""The largest micro-batch that is looked for."""


@dataclass(frozen=True)
class RankOptions:
    """What is asked of a step on several GPUs.

    Attributes:
        cluster: with all its hosts.
        name: of the cluster; empty where it is a description.
        parallel: sizes of axes; None: all.
        wrapped, reduce_dtype, tensor_parallel: see `membench.predict`.
        checkpointing: kinds that are tried.
        batch_size: samples in a step for each GPU; None: any micro-batch.
        machine: of each host; None: the one of ``conf/machine/server.yaml``.
        kernels: ``"inductor"``: each repeated block is given to `torch.compile`; None: what was given to it is compiled.
    """

    cluster: Cluster
    device: DeviceProfile
    name: str = ""
    parallel: Mapping[str, int] | None = None
    wrapped: Sequence[str] | None = None
    reduce_dtype: torch.dtype | None = None
    checkpointing: Sequence[Checkpointing] = tuple(Checkpointing)
    batch_size: int | None = None
    machine: Machine | None = None
    tensor_parallel: Plan | None = None
    kernels: str | None = None

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            check(COUNT, batch_size=self.batch_size)

    @property
    def free_bytes(self) -> int:
        """What the context leaves of a device."""
        return self.device.memory_bytes - (self.device.context_bytes or 0)


@dataclass(order=True, frozen=True)
class _Waiting:
    """A combination that may fit, with a lower bound on its seconds per sample; the most promising comes first."""

    least_s: float
    combination: Combination = field(compare=False)
    ranks: Ranks = field(compare=False)


class ClusterSearch:
    """A search over the combinations of a step.

    Args:
        workload: on any device, ``meta`` included; its tensors are only read.
        update: of the weights; None: the step ends with the gradients.
        shown: how many of the fastest are predicted for certain; None: all that fit.

    Raises:
        MembenchError: it is a step of inference, the module has no repeated blocks, or the options contradict the cluster.
    """

    def __init__(
        self,
        workload: Workload,
        options: RankOptions,
        update: WeightUpdate | None = None,
        shown: int | None = SHOWN,
    ) -> None:
        if workload.loss is None:
            raise MembenchError(
                "on several GPUs training alone is advised on; pass a loss, or leave the cluster out"
            )
        module, wrapped = workload.module, options.wrapped
        known, self._compiled = compiled_parts(module, workload.loss, options.kernels)
        workload = replace(workload, compiled=known)
        self._workload, self._options, self._by, self._shown = workload, options, update, shown
        self._classes = repeated_classes(module) if wrapped is None else frozenset(wrapped)
        self._blocks = tuple(_places(module, self._classes))
        if self._compiled is not None and options.kernels is not None:
            self._compiled = Compiled(self._blocks)
        self._step = Step(
            workload,
            self._classes,
            self._blocks,
            options.device,
            options.machine,
            options.cluster,
            update,
            options.tensor_parallel,
            self._compiled,
        )
        self._refused: dict[str, MembenchError] = {}
        self._ranks = cache(self._ranks_of)
        self._meshes = list(self._all_meshes())
        self._weights: dict[str, Tensor] = dict(module.named_parameters())
        self._weights_bytes = {name: each.numel() * each.itemsize for name, each in self._weights.items()}
        self._states: dict[str, int] = {}
        self._numbered: dict[Variant, StepNumbers] = {}
        self._programs: dict[Variant, Program] = {}
        self._capturing: defaultdict[Variant, Lock] = defaultdict(Lock)
        self._lock = Lock()
        self._waiting: list[_Waiting] = []
        self._plans: list[RankPlan] = []
        self._nearest: Nearest | None = None
        self._is_alike = True
        self._searched = self._too_large = self._by_bound = self._too_slow = self._failed = 0

    def advice(self, *, processes: int | None = None, progress: bool = False) -> ClusterAdvice:
        """Return the advice; see `membench.advise`.

        Raises:
            MembenchError: no program can be captured, or the optimizer cannot be made.
        """
        with Work(THREADS, progress=progress) as work, Jobs(self._step, processes) as jobs:
            with jobs.turn() as run:
                self._states = run(state_bytes)
            tensors = sorted({dict(axes).get(TENSOR, 1) for axes in self._meshes})
            searches = [
                work.start(self._search, mode, tensor, jobs)
                for tensor in tensors
                for mode in self._options.checkpointing
            ]
            for search in searches:
                search.result()
            waiting = len(self._waiting)
            for prediction in [work.start(self._predict_next, jobs) for _ in range(waiting)]:
                prediction.result()
        if self._refused and self._searched == self._failed:
            raise next(iter(self._refused.values()))  # nothing could be captured
        return self._answer()

    def _all_meshes(self) -> Iterator[Axes]:
        """Yield the meshes that are asked for, or all in which a rank has its weights in the precision of the module.

        Whole weights of a module that is converted would be updated in half precision, with other results.
        """
        parallel = self._options.parallel
        if parallel is not None:
            if parallel.get(CONTEXT, 1) > 1:
                raise MembenchError(
                    f"advice does not divide sequences; leave {CONTEXT} out of parallel, or predict the step with membench predict"
                )
            axes = tuple(
                (axis, parallel[axis]) for axis in (*AXES, *(set(parallel) - set(AXES))) if axis in parallel
            )
            one = Combination(axes, True, Checkpointing.NONE, 1)
            self._ranks(axes, one.shards > 1 and one.stages == 1, one.stages)  # checks it
            yield axes
            return
        cluster, is_dividable = self._options.cluster, self._has_plan()
        for axes in factorisations(cluster.devices, AXES):
            one = Combination(axes, True, Checkpointing.NONE, 1)
            is_within_a_host = cluster.devices_per_host % one.tensor == 0
            may_be_divided = one.tensor == 1 or (is_dividable and is_within_a_host)
            if may_be_divided and one.stages <= len(self._blocks) and (one.shards > 1 or not self._converts):
                yield axes

    @property
    def _how_compiled(self) -> str:
        if self._compiled is None:
            return ""
        return AS_GIVEN if self._options.kernels is None else BLOCK_BY_BLOCK

    @property
    def _converts(self) -> bool:
        """Whether products are in another precision than the module's weights."""
        precision = self._workload.precision
        return precision is not None and precision.dtype not in (None, torch.float32)

    def _has_plan(self) -> bool:
        if self._options.tensor_parallel is None:
            try:
                plan_of(self._workload.module)
            except MembenchError as error:
                self._refused["tensor parallelism"] = error
                return False
        return True

    def _ranks_of(self, axes: Axes, reshard_after_forward: bool, accumulate: int) -> Ranks:
        options = self._options
        return ranks_of(
            self._workload.module,
            options.cluster,
            nodes=options.cluster.hosts,
            parallel=dict(axes),
            accumulate=accumulate,
            wrapped=options.wrapped,
            reshard_after_forward=reshard_after_forward,
            reduce_dtype=options.reduce_dtype,
            tensor_parallel=options.tensor_parallel if dict(axes).get(TENSOR, 1) > 1 else None,
        )

    def _search(self, mode: Checkpointing, tensor: int, jobs: Jobs) -> None:
        """Find the numbers of a program at one micro-batch after another, and note each combination that may fit."""
        meshes = [axes for axes in self._meshes if dict(axes).get(TENSOR, 1) == tensor]
        numbers: StepNumbers | None = None
        for samples in self._micro_batches(meshes):
            every = list(combinations(meshes, mode, samples, self._options.batch_size))
            with self._lock:
                self._searched += len(every)
            before = numbers and replace(numbers, times=samples / numbers.samples)
            found = [each for each in every if self._may_fit(each, before)]
            if every and not found:
                break
            if not found:
                continue
            variant = Variant(mode, samples, tensor)
            try:
                numbers = self._numbers(variant, jobs)
            except MembenchError as error:
                tensors = f"tp {tensor}, " if tensor > 1 else ""
                self._refused[f"{tensors}{mode}, micro-batch {samples}"] = error
                self._failed += len(found)
                if samples == 1:  # too few for some modules, such as those of batch norm
                    continue
                break
            for combination in found:
                if self._may_fit(combination, numbers):
                    ranks = self._ranks_for(combination)
                    least_s = least_step_time_s(numbers, ranks) / combination.samples
                    with self._lock:
                        heappush(self._waiting, _Waiting(least_s, combination, ranks))

    def _micro_batches(self, meshes: Sequence[Axes]) -> list[int]:
        batch_size = self._options.batch_size
        if batch_size is None:
            return list(micro_batches(None, MOST_SAMPLES))
        sharing = {dict(axes).get(TENSOR, 1) * dict(axes).get(PIPELINED, 1) for axes in meshes}
        return sorted(
            {size for number in sharing for size in micro_batches(number * batch_size, MOST_SAMPLES)}
        )

    def _numbers(self, variant: Variant, jobs: Jobs) -> StepNumbers:
        """Return the numbers of a program, which is captured as a whole where its blocks differ."""
        with jobs.turn(Urgency.LEVER) as run:
            numbers: StepNumbers = run(numbers_of, variant) or self._program(variant, run).numbers
        self._numbered[variant] = numbers
        return numbers

    def _program(self, variant: Variant, run: Run) -> Program:
        """Return a program, which is captured once."""
        with self._capturing[variant]:
            if variant not in self._programs:
                program = self._programs[variant] = run(captured, variant)
                if not variant.is_cut:  # it accumulates nothing
                    self._is_alike &= program.numbers.is_near(self._numbered.get(variant, program.numbers))
            return self._programs[variant]

    def _ranks_for(self, combination: Combination) -> Ranks:
        reshard = combination.reshard_after_forward and combination.stages == 1
        return self._ranks(combination.axes, reshard, combination.accumulate)

    def _may_fit(self, combination: Combination, numbers: StepNumbers | None) -> bool:
        """Return whether a bound on the memory leaves it open that a combination fits."""
        trained = self._weights if numbers is None else numbers.reduced
        states: Mapping[str, float] = {}
        gradients = 0.0
        if combination.shards > 1 or not self._converts:  # in the precision of the module
            gpus = combination.shards * combination.tensor
            states = rank_states_bytes(self._weights_bytes, self._states, trained, gpus)
            gradients = 0.0 if self._by is None or self._by.in_backward else self._size_bytes(trained) / gpus
        least = int(sum(states.values()) / combination.stages)
        if numbers is not None:
            least = least_rank_bytes(numbers, self._ranks_for(combination), states, gradients)
        if least <= self._options.free_bytes:
            return True
        self._by_bound += 1
        self._note(combination, least, is_bound=True)
        return False

    def _size_bytes(self, names: Iterable[str]) -> int:
        return sum(self._weights_bytes.get(name, 0) for name in names)

    def _note(self, combination: Combination, needed_bytes: int, *, is_bound: bool) -> None:
        """Note a combination that does not fit."""
        with self._lock:
            self._too_large += 1
            if self._nearest is None or needed_bytes < self._nearest.needed_bytes:
                self._nearest = Nearest(combination, needed_bytes, is_bound)

    def _predict_next(self, jobs: Jobs) -> None:
        """Predict the most promising combination that waits, unless as many as are shown are faster for certain."""
        with jobs.turn() as run:
            waiting = self._next()
            if waiting is None:
                return
            combination = waiting.combination
            try:
                program = self._program(Variant.of(combination), run)
                prediction: Prediction = run(predicted, program, waiting.ranks)
            except MembenchError as error:
                with self._lock:
                    self._failed += 1
                    self._refused.setdefault(_kind(combination), error)
                return
        if prediction.fits:
            with self._lock:
                self._plans.append(RankPlan(combination, prediction))
        else:
            self._note(combination, prediction.reserved_bytes, is_bound=False)

    def _next(self) -> _Waiting | None:
        """Return the most promising combination whose program is not being captured; None: those that are left are too slow."""
        with self._lock:
            times = sorted(1 / plan.samples_per_s for plan in self._plans)
            shown = self._shown
            if shown is not None and len(times) >= shown and self._waiting[0].least_s > times[shown - 1]:
                heappop(self._waiting)
                self._too_slow += 1
                return None
            ready = (
                each
                for each in sorted(self._waiting)
                if not self._capturing[Variant.of(each.combination)].locked()
            )
            waiting = next(ready, self._waiting[0])
            self._waiting.remove(waiting)
            heapify(self._waiting)
            return waiting

    def _answer(self) -> ClusterAdvice:
        workload, options = self._workload, self._options
        trained = [name for name, weight in self._weights.items() if weight.requires_grad]
        states_bytes = self._size_bytes([*self._weights, *trained]) + sum(self._states.values())
        reduce_dtype = options.reduce_dtype
        return ClusterAdvice(
            model=workload.name,
            precision=None if workload.precision is None else str(workload.precision),
            optimizer=None if self._by is None else self._by.name,
            reduce_dtype=None if reduce_dtype is None else str(reduce_dtype).removeprefix("torch."),
            cluster=options.cluster,
            cluster_name=options.name,
            device=options.device.name,
            batch_size=options.batch_size,
            tokens=_tokens(workload),
            compiled=self._how_compiled,
            blocks=self._blocks,
            classes=tuple(sorted(self._classes)),
            begins={
                stages: stage_begins(workload.module, self._classes, stages)
                for stages in {dict(axes).get(PIPELINED, 1) for axes in self._meshes} - {1}
            },
            plans=tuple(sorted(self._plans, key=_order)),
            searched=self._searched,
            too_large=self._too_large,
            too_large_by_bound=self._by_bound,
            too_slow=self._too_slow,
            failed=self._failed,
            is_alike=self._is_alike,
            refused={name: str(error) for name, error in self._refused.items()},
            nearest=None if self._plans else self._nearest,
            states_bytes=states_bytes,
            free_bytes=options.free_bytes,
        )


def _kind(combination: Combination) -> str:
    """Return what may not be predicted for all combinations that have it."""
    named = [
        f"{name} {combination.parallel[name]}" for name in (PIPELINED, TENSOR) if name in combination.parallel
    ]
    return ", ".join([*named, str(combination.checkpointing), f"micro-batch {combination.micro_batch}"])


def _order(plan: RankPlan) -> tuple[float, int]:
    return -plan.samples_per_s, plan.prediction.reserved_bytes


def _tokens(workload: Workload) -> int | None:
    """Return the length of a sample that is a sequence of tokens."""
    first = next(iter(tensors_in(workload.inputs)), None)
    is_sequence = first is not None and first.dim() == 2 and not first.is_floating_point()
    return first.shape[1] if first is not None and is_sequence else None


def _places(module: nn.Module, classes: Set[str]) -> Iterator[str]:
    """Yield the names of the blocks that are not inside another one."""
    blocks = {id(block) for block in blocks_of(module, classes)}
    yield from (name for name, each in module.named_modules() if id(each) in blocks)
