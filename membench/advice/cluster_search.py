"""The search for the fastest way to run a step on several GPUs.

    meshes -> bound on states -> programs, captured -> bound on memory -> the least time first: predicted -> ranked

A program, with one kind of checkpointing at one micro-batch, is captured once, and its graph serves all meshes. Memory of samples
is taken to be in proportion to them for one decision alone: whether a larger micro-batch is captured. A combination whose least
time per sample exceeds that of `SHOWN` predicted ones is not predicted, so that those are the fastest of all.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property, partial
from heapq import heappop, heappush
from threading import Lock

import torch
from torch import nn

from membench.advice.cluster_advice import ClusterAdvice, Nearest, RankPlan
from membench.advice.cluster_jobs import Jobs, Program, Shards, Step, predicted_ranks
from membench.advice.combinations import AXES, Axes, Combination, combinations, factorisations, micro_batches
from membench.advice.rank_bounds import StepNumbers, least_rank_bytes, least_step_time_s
from membench.advice.work import Work
from membench.core.arguments import tensors_in
from membench.core.checks import COUNT, check
from membench.core.cluster import Cluster
from membench.core.device import DeviceProfile
from membench.core.errors import MembenchError
from membench.core.machine import Machine
from membench.core.optimizer import UpdateOf, WeightUpdate
from membench.core.sharding import SHARDED
from membench.core.workload import Workload
from membench.models.checkpointing import Checkpointing, blocks_of
from membench.steps.ranks import Ranks, ranks_of, repeated_classes

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
        wrapped, reduce_dtype: see `membench.predict`.
        checkpointing: kinds that are tried.
        batch_size: samples of one GPU in a step; None: any micro-batch.
        machine: of each host; None: the one of ``conf/machine/server.yaml``.
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
    update: UpdateOf | None = field(compare=False)
    program: Program = field(compare=False)


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
        self._workload, self._options, self._by, self._shown = workload, options, update, shown
        wrapped = options.wrapped
        self._classes = repeated_classes(workload.module) if wrapped is None else frozenset(wrapped)
        self._step = Step(workload, self._classes, update, options.device)
        self._meshes = list(self._all_meshes())
        self._shards: dict[tuple[int, bool], Shards] = {}
        self._refused: dict[str, MembenchError] = {}
        self._sharding = Lock()
        self._lock = Lock()
        self._waiting: list[_Waiting] = []
        self._plans: list[RankPlan] = []
        self._nearest: Nearest | None = None
        self._searched = self._too_large = self._by_bound = self._too_slow = 0

    def advice(self, *, processes: int | None = None, progress: bool = False) -> ClusterAdvice:
        """Return the advice; see `membench.advise`.

        Raises:
            MembenchError: no program can be captured, or the optimizer cannot be made.
        """
        with Work(THREADS, progress=progress) as work, Jobs(self._step, processes) as jobs:
            searches = [work.start(self._search, mode, jobs, work) for mode in self._options.checkpointing]
            for search in searches:
                for prediction in search.result():
                    prediction.result()
        if self._refused and not self._shards:
            raise next(iter(self._refused.values()))  # nothing could be captured
        return self._answer()

    def _all_meshes(self) -> Iterator[Axes]:
        """Yield the meshes that are asked for, or all in which a rank has its weights in the precision of the module.

        Whole weights of a module that is converted would be updated in half precision, with other results.
        """
        parallel = self._options.parallel
        if parallel is not None:
            axes = tuple(
                (axis, parallel[axis]) for axis in (*AXES, *(set(parallel) - set(AXES))) if axis in parallel
            )
            self._ranks(Combination(axes, True, Checkpointing.NONE, 1))  # checks it
            yield axes
            return
        precision = self._workload.precision
        converts = precision is not None and precision.dtype not in (None, torch.float32)
        for axes in factorisations(self._options.cluster.devices, AXES):
            if dict(axes).get(SHARDED, 1) > 1 or not converts:
                yield axes

    def _ranks(self, combination: Combination) -> Ranks:
        options = self._options
        return ranks_of(
            self._workload.module,
            options.cluster,
            nodes=options.cluster.hosts,
            parallel=dict(combination.axes),
            accumulate=combination.accumulate,
            wrapped=options.wrapped,
            reshard_after_forward=combination.reshard_after_forward,
            reduce_dtype=options.reduce_dtype,
        )

    def _search(self, mode: Checkpointing, jobs: Jobs, work: Work) -> list[Future[None]]:
        """Capture a program at one micro-batch after another, and begin a prediction for each combination that may fit."""
        numbers: StepNumbers | None = None
        begun = []
        for samples, accumulate in micro_batches(self._options.batch_size, MOST_SAMPLES):
            found = [
                (each, self._ranks(each)) for each in combinations(self._meshes, mode, samples, accumulate)
            ]
            with self._lock:
                self._searched += len(found)
            found = [pair for pair in found if self._may_fit(*pair, numbers)]
            if not found:
                break
            try:
                program = jobs.captured(mode, samples)
            except MembenchError as error:
                self._refused[f"{mode}, micro-batch {samples}"] = error
                if samples == 1:  # too few for some modules, such as those of batch norm
                    continue
                break
            numbers = program.numbers
            for combination, ranks in found:
                shards = self._shards_of(combination, ranks, program, jobs)
                if self._may_fit(combination, ranks, numbers):
                    least_s = least_step_time_s(numbers, ranks) / combination.samples
                    with self._lock:
                        heappush(self._waiting, _Waiting(least_s, combination, ranks, shards.update, program))
                    begun.append(work.start(self._predict_next, jobs))
        return begun

    def _may_fit(self, combination: Combination, ranks: Ranks, numbers: StepNumbers | None) -> bool:
        """Return whether a bound on the memory leaves it open that a combination fits."""
        shards = self._shards.get(_key(combination))
        if shards is None:  # nothing is captured yet: weights and gradients
            held = least = self._weight_bytes // combination.shards
            least *= 2
        else:
            held, least = shards.held_bytes, shards.least_bytes
        if numbers is not None:
            least = max(least, least_rank_bytes(numbers, ranks, held, combination.micro_batch))
        if least <= self._options.free_bytes:
            return True
        self._by_bound += 1
        self._note(combination, least, is_bound=True)
        return False

    @cached_property
    def _weight_bytes(self) -> int:
        weights = (each for each in self._workload.module.parameters() if each.requires_grad)
        return sum(weight.numel() * weight.itemsize for weight in weights)

    def _shards_of(self, combination: Combination, ranks: Ranks, program: Program, jobs: Jobs) -> Shards:
        key = _key(combination)
        with self._sharding:  # the other kinds of checkpointing wait for the same
            if key not in self._shards:
                self._shards[key] = jobs.shards(program, ranks)
        return self._shards[key]

    def _note(self, combination: Combination, needed_bytes: int, *, is_bound: bool) -> None:
        """Note a combination that does not fit."""
        with self._lock:
            self._too_large += 1
            if self._nearest is None or needed_bytes < self._nearest.needed_bytes:
                self._nearest = Nearest(combination, needed_bytes, is_bound)

    def _predict_next(self, jobs: Jobs) -> None:
        """Predict the most promising combination that waits, unless as many as are shown are faster for certain."""
        with jobs.turn() as run:
            with self._lock:
                waiting = heappop(self._waiting)
                times = sorted(1 / plan.samples_per_s for plan in self._plans)
                shown = self._shown
                if shown is not None and len(times) >= shown and waiting.least_s > times[shown - 1]:
                    self._too_slow += 1
                    return
            prediction = run(
                partial(
                    predicted_ranks,
                    waiting.program,
                    self._options.device,
                    self._options.machine,
                    waiting.update,
                    waiting.ranks,
                )
            )
        if prediction.fits:
            with self._lock:
                self._plans.append(RankPlan(waiting.combination, prediction))
        else:
            self._note(waiting.combination, prediction.reserved_bytes, is_bound=False)

    def _answer(self) -> ClusterAdvice:
        workload, options = self._workload, self._options
        module = workload.module
        states = [shards.least_bytes * count for (count, _), shards in self._shards.items()]
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
            blocks=tuple(_places(module, self._classes)),
            classes=tuple(sorted(self._classes)),
            plans=tuple(sorted(self._plans, key=_order)),
            searched=self._searched,
            too_large=self._too_large,
            too_large_by_bound=self._by_bound,
            too_slow=self._too_slow,
            refused={name: str(error) for name, error in self._refused.items()},
            nearest=None if self._plans else self._nearest,
            states_bytes=min(states, default=2 * self._weight_bytes),
            free_bytes=options.free_bytes,
        )


def _key(combination: Combination) -> tuple[int, bool]:
    return combination.shards, combination.accumulate > 1


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
