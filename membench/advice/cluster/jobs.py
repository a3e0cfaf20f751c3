"""What the processes of an advice on several GPUs do: capture programs, and predict combinations.

A step that lies on the meta device is captured in any of the processes, several programs at the same time, as each
capture takes longer than a prediction. One whose weights have values stays in the calling process. Only what plain
PyTorch runs is passed on.
"""

import pickle
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain
from math import inf, prod
from threading import Lock
from typing import Any

from joblib.externals.loky.backend.reduction import dumps
from torch import nn

from membench.advice.cluster.combinations import Combination
from membench.advice.cluster.depth import Depth
from membench.advice.cluster.step_numbers import StepNumbers, numbers_of_depth
from membench.advice.pool.workers import Urgency, Workers
from membench.capture.capture import Captures
from membench.capture.update.captured_update import CapturedUpdate
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.graph.call import Value
from membench.core.graph.task_graph import Task, TaskGraph
from membench.core.hardware.cluster import Cluster
from membench.core.hardware.machine import Machine
from membench.core.hardware.mesh import Mesh
from membench.core.libraries.garbage import without_collection
from membench.core.step.arguments import tensors_in
from membench.core.step.kernels import Compiled
from membench.core.step.optimizer import UpdateOf, WeightUpdate
from membench.core.step.workload import Workload
from membench.models.checkpointing import Checkpointing, with_checkpointing
from membench.planning.rewrites.update import updated_workload
from membench.steps.parallel.context_parallel import AXIS as CONTEXT
from membench.steps.parallel.division import Division
from membench.steps.parallel.ranks import Ranks
from membench.steps.parallel.tensor_parallel import AXIS as TENSOR
from membench.steps.parallel.tensor_parallel import TensorParallelPlan
from membench.steps.predicted.fused_graphs import step_graphs
from membench.steps.predicted.prediction import Prediction
from membench.steps.predicted.rank_step import RankStep, rank_cost
from membench.strategies.pytorch import PyTorch

Run = Callable[..., Any]
"""Returns what a job returns, which gets the step before its other arguments."""


@dataclass(frozen=True)
class RankWorkload:
    """The step of one GPU, of which programs are made.

    Attributes:
        classes: names of the classes of its blocks.
        blocks: their names, in order.
        cluster: with all its hosts, and with their device.
        machine: each host's machine; None: the one of ``conf/machine/server.yaml``.
        update: the weights' update; None: the step ends with the gradients.
        tensor_parallel: see `Division.plan`.
        compiled: what of it was given to `torch.compile`; None: nothing.
    """

    workload: Workload
    classes: Set[str]
    blocks: tuple[str, ...]
    cluster: Cluster
    machine: Machine | None
    update: WeightUpdate | None
    tensor_parallel: TensorParallelPlan | None
    compiled: Compiled | None

    @property
    def has_values(self) -> bool:
        """Whether a tensor of it has data, on which sizes may depend."""
        workload, module = self.workload, self.workload.module
        given = (tensors_in(workload.inputs), tensors_in(workload.targets))
        return any(not each.is_meta for each in chain(module.parameters(), module.buffers(), *given))


@dataclass(frozen=True)
class Variant:
    """What is captured once, for all combinations that run it.

    Attributes:
        samples: samples in a micro-batch.
        division: how GPUs divide it, without a plan.
        is_cut: it is a micro-batch of a pipeline, whose gradients are scaled and not accumulated.
    """

    checkpointing: Checkpointing
    samples: int
    division: Division = field(default_factory=Division)
    is_cut: bool = False

    @classmethod
    def of(cls, combination: Combination) -> "Variant":
        """Return the one that a combination runs."""
        return cls(combination.checkpointing, combination.micro_batch, combination.division, combination.stages > 1)


@dataclass(frozen=True)
class CapturedVariant:
    """A captured program.

    Attributes:
        graph: pickled; see `_read`.
    """

    variant: Variant
    graph: bytes
    numbers: StepNumbers


class Jobs:
    """Processes that do the jobs of one step, or this one, where the step stays here. Threads may share it.

    Args:
        processes: how many; None: one for each processor that this process may use.
    """

    def __init__(self, step: RankWorkload, processes: int | None = None) -> None:
        self._step, self._sent = step, None if step.has_values else _pickled(step)
        self._workers = None if self._sent is None else Workers(processes)
        if self._workers:
            self._workers.start()
        self._here = Lock()

    def __enter__(self) -> "Jobs":
        return self

    def __exit__(self, *_: object) -> None:
        if self._workers is not None:
            self._workers.end()

    @contextmanager
    def turn(self, urgency: Urgency = Urgency.METHOD) -> Iterator[Run]:
        """Wait for a process, and return what runs a job in it."""
        if self._workers is None:
            with self._here:
                yield lambda job, *arguments: job(self._step, *arguments)
            return
        with self._workers.one(urgency) as worker:

            def run(job: Callable[..., Any], *arguments: object) -> Any:
                found = worker.call(partial(job, self._sent, *arguments), inf).result
                if isinstance(found, MembenchError):
                    raise found
                return found

            yield run


# ---- jobs -------------------------------------------------------------------------------------------


@without_collection()  # of which a quarter of the time would be
def predicted(step: bytes | RankWorkload, program: CapturedVariant, ranks: Ranks) -> Prediction:
    """Return the prediction of a combination."""
    of, graph = _opened(step), _read(program.graph)
    efficiency = configuration.load("framework", "pytorch").efficiency

    def update() -> UpdateOf | None:
        return None if of.update is None else CapturedUpdate(of.update, of.workload.module)

    samples = program.variant.samples
    return RankStep(lambda _: graph, samples, PyTorch(), ranks, update, efficiency, of.machine).predicted()


@without_collection()
def captured(step: bytes | RankWorkload, variant: Variant) -> CapturedVariant:
    """Return a captured program.

    Raises:
        MembenchError: it cannot be captured.
    """
    of = _opened(step)
    graph, numbers = _captured(of, of.workload.module, variant)
    return CapturedVariant(variant, pickle.dumps(graph), numbers)


@without_collection()
def numbers_of(step: bytes | RankWorkload, variant: Variant) -> StepNumbers | None:
    """Return the numbers of a program from a copy with few blocks; None where blocks differ.

    Raises:
        MembenchError: it cannot be captured.
    """
    of = _opened(step)
    depth = Depth.of(of.workload.module, of.blocks)
    if depth is None:
        return None
    _, numbers = _captured(of, depth.copy(of.workload.module), variant)
    return numbers_of_depth(depth, numbers)


@without_collection()
def state_bytes(step: bytes | RankWorkload) -> dict[str, int]:
    """Return the bytes of the optimizer's states by weight, of whole weights in the precision of the module.

    Raises:
        MembenchError: the optimizer cannot be made.
    """
    of = _opened(step)
    if of.update is None:
        return {}
    gradients = {
        name: Value(0, weight.dtype, tuple(weight.shape), tuple(weight.stride()), 0)
        for name, weight in of.workload.module.named_parameters()
        if weight.requires_grad
    }
    graph = TaskGraph(of.workload.name, 1, (), (), (), gradients=tuple(gradients.items()))
    states = CapturedUpdate(of.update, of.workload.module)(graph).states
    return {name: sum(of_weight.values()) for name, of_weight in states.items()}


# ---- inside -----------------------------------------------------------------------------------------


def _pickled(step: RankWorkload) -> bytes | None:
    """Return a step for other processes; None: it has parts that stay in this one, such as locks."""
    try:
        sent = bytes(dumps(step))
        pickle.loads(sent)
    except Exception:  # whatever the user's classes raise
        return None
    return sent


def _captured(of: RankWorkload, module: nn.Module, variant: Variant) -> tuple[TaskGraph, StepNumbers]:
    """Return the graph of a variant of a module, and its numbers."""
    workload = replace(of.workload, module=with_checkpointing(module, of.classes, variant.checkpointing))
    workload = replace(workload.with_batch(variant.samples), places_gradients=True)
    scaled = replace(workload, loss_scale=0.5)  # by a number that does not matter
    workload = scaled if variant.is_cut else updated_workload(workload, of.update)
    framework = configuration.load("framework", "pytorch")
    axes = variant.division.axes
    mesh = Mesh(of.cluster, (("others", of.cluster.devices // prod(axes.values())), *axes.items()))
    plan = of.tensor_parallel if TENSOR in axes else None
    prepared: Any = replace(variant.division, plan=plan).divided if axes else nullcontext
    captures = Captures(workload, framework.captured_on(of.cluster.profile), uses_values=True, prepared=prepared)
    graph = PyTorch().scheduled(step_graphs(captures, of.compiled, of.blocks).graph_at(variant.samples))
    if CONTEXT in axes and not any(_is_of_ring(task) for task in graph.tasks):
        raise MembenchError(
            f"no attention of {type(module).__name__} passes keys and values between GPUs that divide a sequence; "
            f"leave {CONTEXT} out of parallel"
        )
    cost = rank_cost(mesh, framework.efficiency, of.machine)
    return graph, StepNumbers.of(graph, cost, of.blocks)


def _is_of_ring(task: Task) -> bool:
    return task.collective is not None and task.collective.axis == CONTEXT


def _opened(step: bytes | RankWorkload) -> RankWorkload:
    return _unpickled(step) if isinstance(step, bytes) else step


@lru_cache(maxsize=1)
def _unpickled(sent: bytes) -> RankWorkload:
    step: RankWorkload = pickle.loads(sent)
    return step


@lru_cache(maxsize=4)
def _read(pickled: bytes) -> TaskGraph:
    """Return a graph of plain PyTorch's step, which several jobs get."""
    graph: TaskGraph = pickle.loads(pickled)
    return graph
