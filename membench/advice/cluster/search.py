"""The search for the fastest way to run a step on several GPUs.

    meshes -> bound on states -> programs, in numbers -> bounds on memory and time -> the least time first: captured,
    predicted -> ranked

A program, with one kind of checkpointing at one micro-batch, divided over some GPUs or not, serves all meshes. Its
numbers are those of a copy with few blocks (`Depth`); it is captured as a whole where a combination is predicted.
Memory of samples is taken to be in proportion to them for one decision alone: whether a larger micro-batch is looked
at. A combination whose least time per sample exceeds that of `SHOWN` predicted ones is not predicted, so that those are
the fastest of all. Sequences are divided over twice as many GPUs, again and again, where a combination does not fit
with one of them in a micro-batch: the only question then that half a micro-batch does not answer.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import inf
from threading import Lock

from torch import Tensor, nn

from membench.advice.cluster.advice import AS_GIVEN, BLOCK_BY_BLOCK, ClusterAdvice, Nearest, RankPlan
from membench.advice.cluster.combinations import Combination, combinations
from membench.advice.cluster.jobs import (
    CapturedVariant,
    Jobs,
    RankWorkload,
    Run,
    Variant,
    captured,
    numbers_of,
    predicted,
    state_bytes,
)
from membench.advice.cluster.meshes import Meshes, converts, tokens_of
from membench.advice.cluster.rank_bounds import least_rank_bytes, least_step_time_s, rank_states_bytes
from membench.advice.cluster.rank_options import RankOptions
from membench.advice.cluster.step_numbers import StepNumbers
from membench.advice.pool.work import Work
from membench.advice.pool.workers import Urgency
from membench.capture.operators.unquantized import held_bytes
from membench.core.errors import MembenchError
from membench.core.step.kernels import Compiled
from membench.core.step.optimizer import WeightUpdate
from membench.core.step.pipeline import PIPELINED
from membench.core.step.stored import stored_weights
from membench.core.step.workload import Workload
from membench.models.checkpointing import Checkpointing, blocks_of
from membench.planning.parallel.stages import cannot_begin
from membench.steps.parallel.blocks import repeated_classes, stage_begins
from membench.steps.parallel.division import Division
from membench.steps.parallel.ranks import Ranks
from membench.steps.predicted.fused_graphs import compiled_parts
from membench.steps.predicted.prediction import Prediction

THREADS = 16
"""That wait for processes at the same time."""
SHOWN = 10
"""The fastest combinations, all of which are predicted."""


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
        update: the weights' update; None: the step ends with the gradients.
        shown: how many of the fastest are predicted for certain; None: all that fit.

    Raises:
        MembenchError: it is a step of inference, the module has no repeated blocks, or the options contradict the
            cluster.
    """

    def __init__(
        self, workload: Workload, options: RankOptions, update: WeightUpdate | None = None, shown: int | None = SHOWN
    ) -> None:
        if workload.loss is None:
            raise MembenchError("on several GPUs training alone is advised on; pass a loss, or leave the cluster out")
        module, wrapped = workload.module, options.wrapped
        known, compiled = compiled_parts(module, workload.loss, options.kernels)
        workload = replace(workload, compiled=known)
        classes = repeated_classes(module) if wrapped is None else frozenset(wrapped)
        blocks = tuple(_places(module, classes))
        if compiled is not None and options.kernels is not None:
            compiled = Compiled(blocks)
        of_rank = options.cluster, options.machine, update, options.tensor_parallel
        self._step = RankWorkload(workload, classes, blocks, *of_rank, compiled)
        self._options, self._shown, self._free_bytes = options, shown, options.cluster.free_bytes
        self._meshes = Meshes(workload, options, len(blocks))
        self._refused = dict(self._meshes.refused)
        self._weights: dict[str, Tensor] = stored_weights(module)
        self._weights_bytes = {name: held_bytes(each) for name, each in self._weights.items()}
        self._states: dict[str, int] = {}
        self._numbered: dict[Variant, StepNumbers] = {}
        self._programs: dict[Variant, CapturedVariant] = {}
        self._capturing: defaultdict[Variant, Lock] = defaultdict(Lock)
        self._lock = Lock()
        self._waiting: list[_Waiting] = []
        self._plans: list[RankPlan] = []
        self._not_fitting: list[Combination] = []
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
            searches = [
                work.start(self._search, mode, division, jobs)
                for division in self._meshes.divisions
                for mode in self._options.checkpointing
            ]
            for search in searches:
                search.result()
            self._predict_all(work, jobs)
            self._search_rings(work, jobs)
        if self._refused and self._searched == self._failed:
            raise next(iter(self._refused.values()))  # nothing could be captured
        return self._answer()

    @property
    def _how_compiled(self) -> str:
        if self._step.compiled is None:
            return ""
        return AS_GIVEN if self._options.kernels is None else BLOCK_BY_BLOCK

    def _search(self, mode: Checkpointing, division: Division, jobs: Jobs) -> None:
        """Find the numbers of a program at one micro-batch after another, and note each combination that may fit."""
        meshes = self._meshes.of(division)
        numbers: StepNumbers | None = None
        for samples in self._meshes.micro_batches(meshes):
            every = list(combinations(meshes, mode, samples, self._options.batch_size))
            before = numbers and replace(numbers, times=samples / numbers.samples)
            found = self._may_all_fit(every, before)
            if every and not found:
                break
            if not found:
                continue
            numbers = self._queue(Variant(mode, samples, division), found, jobs)
            # one is too few for some modules, such as those of batch norm
            if numbers is None and samples > 1:
                break

    def _search_rings(self, work: Work, jobs: Jobs) -> None:
        """Divide sequences over twice as many GPUs, repeatedly, where one sample on a GPU does not fit.

        Where one fits, a longer ring is slower: it has as much to compute and more to exchange for each sample.
        """
        has_ring = False
        while longer := self._with_longer_rings():
            first, *others = sorted(longer.items(), key=lambda each: each[0].division.tensor)
            has_ring |= self._queue(*first, jobs) is not None
            if not has_ring:  # attention that is not divided here is not divided elsewhere
                self._failed += sum(len(found) for _, found in others)
                return
            for search in [work.start(self._queue, *each, jobs) for each in others]:
                search.result()
            self._predict_all(work, jobs)

    def _with_longer_rings(self) -> dict[Variant, list[Combination]]:
        """Return what may fit of the last combinations that did not, with sequences over twice as many GPUs."""
        longer: dict[Variant, list[Combination]] = {}
        shorter, self._not_fitting = self._not_fitting, []
        for combination in shorter:
            axes = self._meshes.with_longer_ring(combination.axes)
            numbers = self._numbered.get(replace(Variant.of(combination), is_cut=False))
            if axes is None or numbers is None or combination.micro_batch > 1:
                continue  # without numbers, weights and states alone are too large
            mode, samples = combination.checkpointing, self._options.batch_size
            reshard = combination.reshard_after_forward
            every = [each for each in combinations([axes], mode, 1, samples) if each.reshard_after_forward is reshard]
            if self._least_s(combination, numbers) > self._slowest_s:
                self._searched += len(every)
                self._too_slow += len(every)
                continue
            for each in self._may_all_fit(every, replace(numbers, times=0.5)):
                longer.setdefault(Variant(mode, 1, each.division), []).append(each)
        return longer

    def _may_all_fit(self, every: list[Combination], numbers: StepNumbers | None) -> list[Combination]:
        """Return the combinations of which a bound on the memory leaves it open whether they fit."""
        with self._lock:
            self._searched += len(every)
        return [each for each in every if self._may_fit(each, numbers)]

    def _queue(self, variant: Variant, found: list[Combination], jobs: Jobs) -> StepNumbers | None:
        """Let a program's combinations that may fit wait, and return them; None if it cannot be captured."""
        try:
            numbers = self._numbers(variant, jobs)
        except MembenchError as error:
            self._refused[_kind(variant)] = error
            self._failed += len(found)
            return None
        for combination in found:
            if self._may_fit(combination, numbers):
                ranks, least_s = self._meshes.ranks(combination), self._least_s(combination, numbers)
                with self._lock:
                    heappush(self._waiting, _Waiting(least_s, combination, ranks))
        return numbers

    def _least_s(self, combination: Combination, numbers: StepNumbers) -> float:
        """Return a lower bound on the seconds of a sample of each GPU."""
        return least_step_time_s(numbers, self._meshes.ranks(combination)) / combination.samples

    def _numbers(self, variant: Variant, jobs: Jobs) -> StepNumbers:
        """Return the numbers of a program, which is captured as a whole where its blocks differ."""
        with jobs.turn(Urgency.LEVER) as run:
            numbers: StepNumbers = run(numbers_of, variant) or self._program(variant, run).numbers
        self._numbered[variant] = numbers
        return numbers

    def _program(self, variant: Variant, run: Run) -> CapturedVariant:
        """Return a program, which is captured once."""
        with self._capturing[variant]:
            if variant not in self._programs:
                program = self._programs[variant] = run(captured, variant)
                if not variant.is_cut:  # it accumulates nothing
                    self._is_alike &= program.numbers.is_near(self._numbered.get(variant, program.numbers))
            return self._programs[variant]

    def _may_fit(self, combination: Combination, numbers: StepNumbers | None) -> bool:
        """Return whether a bound on the memory leaves it open that a combination fits."""
        trained = self._weights if numbers is None else numbers.reduced
        states: Mapping[str, float] = {}
        gradients = 0.0
        update = self._step.update
        if combination.shards > 1 or not converts(self._step.workload):  # in the precision of the module
            gpus = combination.shards * combination.division.tensor
            states = rank_states_bytes(self._weights_bytes, self._states, trained, gpus)
            gradients = 0.0 if update is None or update.in_backward else self._size_bytes(trained) / gpus
        least = int(sum(states.values()) / combination.stages)
        if numbers is not None:
            if name := self._without_layers(combination, numbers):
                self._fail(combination, cannot_begin(name))
                return False
            least = least_rank_bytes(numbers, self._meshes.ranks(combination), states, gradients)
        if least <= self._free_bytes:
            return True
        self._by_bound += 1
        self._note(combination, least, is_bound=True)
        return False

    def _without_layers(self, combination: Combination, numbers: StepNumbers) -> str:
        """Return a stage's first block that computes nothing, as its layers are another's; empty if there is none."""
        pipeline = self._meshes.ranks(combination).pipeline
        begins = () if pipeline is None else pipeline.begins
        return next((name for name in begins if name not in numbers.blocks), "")

    def _fail(self, combination: Combination, error: MembenchError) -> None:
        """Note a combination that cannot be captured or predicted."""
        with self._lock:
            self._failed += 1
            self._refused.setdefault(_kind(Variant.of(combination), combination.stages), error)

    def _size_bytes(self, names: Iterable[str]) -> int:
        return sum(self._weights_bytes.get(name, 0) for name in names)

    def _note(self, combination: Combination, needed_bytes: int, *, is_bound: bool) -> None:
        """Note a combination that does not fit."""
        with self._lock:
            self._too_large += 1
            self._not_fitting.append(combination)
            if self._nearest is None or needed_bytes < self._nearest.needed_bytes:
                self._nearest = Nearest(combination, needed_bytes, is_bound)

    def _predict_all(self, work: Work, jobs: Jobs) -> None:
        """Predict what waits."""
        waiting = len(self._waiting)
        for prediction in [work.start(self._predict_next, jobs) for _ in range(waiting)]:
            prediction.result()

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
                self._fail(combination, error)
                return
        if prediction.fits:
            with self._lock:
                self._plans.append(RankPlan(combination, prediction))
        else:
            self._note(combination, prediction.reserved_bytes, is_bound=False)

    @property
    def _slowest_s(self) -> float:
        """Seconds of a sample of the slowest combination that is shown; infinite while more are to be shown."""
        times = sorted(1 / plan.samples_per_s for plan in self._plans)
        shown = self._shown
        return inf if shown is None or len(times) < shown else times[shown - 1]

    def _next(self) -> _Waiting | None:
        """Return the best combination whose program is not being captured, None if the rest are too slow."""
        with self._lock:
            if self._waiting[0].least_s > self._slowest_s:
                heappop(self._waiting)
                self._too_slow += 1
                return None
            ready = (
                each for each in sorted(self._waiting) if not self._capturing[Variant.of(each.combination)].locked()
            )
            waiting = next(ready, self._waiting[0])
            self._waiting.remove(waiting)
            heapify(self._waiting)
            return waiting

    def _answer(self) -> ClusterAdvice:
        workload, update, options = self._step.workload, self._step.update, self._options
        trained = [name for name, weight in workload.module.named_parameters() if weight.requires_grad]
        states_bytes = self._size_bytes([*self._weights, *trained]) + sum(self._states.values())
        reduce_dtype = options.reduce_dtype
        return ClusterAdvice(
            model=workload.name,
            precision=None if workload.precision is None else str(workload.precision),
            optimizer=None if update is None else update.name,
            reduce_dtype=None if reduce_dtype is None else str(reduce_dtype).removeprefix("torch."),
            cluster=options.cluster,
            cluster_name=options.name,
            batch_size=options.batch_size,
            tokens=tokens_of(workload),
            compiled=self._how_compiled,
            blocks=self._step.blocks,
            classes=tuple(sorted(self._step.classes)),
            begins={
                stages: stage_begins(workload.module, frozenset(self._step.classes), stages)
                for stages in self._meshes.stages()
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
        )


def _kind(variant: Variant, stages: int = 1) -> str:
    """Return what may not be predicted for all combinations that have it."""
    axes = {PIPELINED: stages} if stages > 1 else {}
    named = [f"{name} {size}" for name, size in (axes | variant.division.axes).items()]
    return ", ".join([*named, str(variant.checkpointing), f"micro-batch {variant.samples}"])


def _order(plan: RankPlan) -> tuple[float, int]:
    return -plan.samples_per_s, plan.prediction.reserved_bytes


def _places(module: nn.Module, classes: Set[str]) -> Iterator[str]:
    """Yield the names of the blocks that are not inside another one."""
    blocks = {id(block) for block in blocks_of(module, classes)}
    yield from (name for name, each in module.named_modules() if id(each) in blocks)
