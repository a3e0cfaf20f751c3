"""What the processes of an advice on several GPUs do: capture programs, shard their weights, predict combinations.

A program that lies on the meta device is captured in any of the processes, several programs at the same time, as each capture takes
longer than a prediction. One whose weights have values stays in the calling process. Only what plain PyTorch runs is passed on.
"""

import pickle
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from math import inf
from threading import Lock
from types import TracebackType
from typing import Any, TypeVar

from joblib.externals.loky.backend.reduction import dumps

from membench.advice.rank_bounds import StepNumbers
from membench.advice.workers import Urgency, Workers
from membench.capture.capture import Captures
from membench.capture.update import CapturedUpdate
from membench.core import configuration
from membench.core.arguments import tensors_in
from membench.core.device import DeviceProfile
from membench.core.errors import MembenchError
from membench.core.garbage import without_collection
from membench.core.machine import Machine
from membench.core.optimizer import UpdateOf, WeightUpdate
from membench.core.task_graph import ARGUMENT_ROLES, EXTERNAL_ROLES, TaskGraph
from membench.core.workload import Workload
from membench.cost.roofline import RooflineCost
from membench.models.checkpointing import Checkpointing, with_checkpointing
from membench.planning.bounds import least_bytes
from membench.planning.update import add_update, updated_workload
from membench.steps.predict import predict_graphs, rank_graph
from membench.steps.prediction import Prediction
from membench.steps.ranks import Ranks
from membench.strategies.pytorch import PyTorch

Result = TypeVar("Result")
Run = Callable[[Callable[[], Result]], Result]


@dataclass(frozen=True)
class Step:
    """The step of one GPU, of which programs are made.

    Attributes:
        classes: names of the classes of its blocks.
        update: of the weights; None: the step ends with the gradients.
    """

    workload: Workload
    classes: Set[str]
    update: WeightUpdate | None
    device: DeviceProfile

    @property
    def has_values(self) -> bool:
        """Whether a tensor of it has data, on which sizes may depend."""
        workload, module = self.workload, self.workload.module
        given = (tensors_in(workload.inputs), tensors_in(workload.targets))
        return any(not each.is_meta for each in chain(module.parameters(), module.buffers(), *given))


@dataclass(frozen=True)
class Program:
    """A captured program.

    Attributes:
        graph: pickled; see `_read`.
    """

    samples: int
    graph: bytes
    numbers: StepNumbers


@dataclass(frozen=True)
class Shards:
    """What each GPU holds of the weights when a number of GPUs divides them.

    Attributes:
        update: of the shards; None: the step ends with the gradients.
        held_bytes: weights and states, which are there throughout.
        least_bytes: the same, with gradients and what the update needs (`membench.planning.bounds`).
    """

    update: UpdateOf | None
    held_bytes: int
    least_bytes: int


class Jobs:
    """Processes that do the jobs of one step. Threads may share it.

    Args:
        processes: how many; None: one for each processor that this process may use.
    """

    def __init__(self, step: Step, processes: int | None = None) -> None:
        self._step, self._sent = step, None if step.has_values else _pickled(step)
        self._workers, self._capturing = Workers(processes), Lock()

    def __enter__(self) -> "Jobs":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._workers.end()

    @contextmanager
    def turn(self, urgency: Urgency = Urgency.METHOD) -> Iterator[Run[Any]]:
        """Wait for a process, and return what runs a job in it."""
        with self._workers.one(urgency) as worker:

            def run(job: Callable[[], Result]) -> Result:
                found = worker.call(job, inf).result
                if isinstance(found, MembenchError):
                    raise found
                return found

            yield run

    def captured(self, mode: Checkpointing, samples: int) -> Program:
        """Return the program with a kind of checkpointing, on a number of samples.

        Raises:
            MembenchError: it cannot be captured.
        """
        if self._sent is None:
            with self._capturing:
                return _captured(self._step, mode, samples)
        with self.turn(Urgency.LEVER) as run:
            found: Program = run(partial(_captured, self._sent, mode, samples))
        return found

    def shards(self, program: Program, ranks: Ranks) -> Shards:
        """Return what a rank holds of the weights.

        Raises:
            MembenchError: the optimizer cannot be made.
        """
        if self._sent is None:
            with self._capturing:
                return _shards(self._step, program, ranks)
        with self.turn(Urgency.MOVES_WEIGHTS) as run:
            found: Shards = run(partial(_shards, self._sent, program, ranks))
        return found


@without_collection()  # of which a quarter of the time would be
def predicted_ranks(
    program: Program, device: DeviceProfile, machine: Machine | None, update: UpdateOf | None, ranks: Ranks
) -> Prediction:
    """Return the prediction of a combination; a job."""
    graph = _read(program.graph)
    efficiency = configuration.load("framework", "pytorch").efficiency
    return predict_graphs(
        lambda _: graph,
        program.samples,
        PyTorch(),
        device,
        efficiency,
        update=update,
        machine=machine,
        ranks=ranks,
    )


def _pickled(step: Step) -> bytes | None:
    """Return a step for other processes; None: it has parts that stay in this one, such as locks."""
    try:
        sent = bytes(dumps(step))
        pickle.loads(sent)
    except Exception:  # whatever the user's classes raise
        return None
    return sent


@without_collection()
def _captured(step: bytes | Step, mode: Checkpointing, samples: int) -> Program:
    of = _unpickled(step) if isinstance(step, bytes) else step
    workload = replace(of.workload, module=with_checkpointing(of.workload.module, of.classes, mode))
    framework = configuration.load("framework", "pytorch")
    updated = updated_workload(workload.with_batch(samples), of.update)
    graph = Captures(updated, framework.captured_on, uses_values=True).graph_at(samples)
    graph = graph.plain_alone
    numbers = StepNumbers.of(graph, RooflineCost(of.device, framework.efficiency))
    return Program(samples, pickle.dumps(graph), numbers)


@without_collection()
def _shards(step: bytes | Step, program: Program, ranks: Ranks) -> Shards:
    of = _unpickled(step) if isinstance(step, bytes) else step
    update = None if of.update is None else CapturedUpdate(of.update, of.workload.module)
    graph = add_update(rank_graph(_read(program.graph), ranks), update)
    kept = (block for block in graph.blocks if block.role in EXTERNAL_ROLES - ARGUMENT_ROLES)
    return Shards(update, sum(block.size_bytes for block in kept), least_bytes(graph))


@lru_cache(maxsize=1)
def _unpickled(sent: bytes) -> Step:
    step: Step = pickle.loads(sent)
    return step


@lru_cache(maxsize=4)
def _read(pickled: bytes) -> TaskGraph:
    """Return a graph, which several jobs get. It is that of plain PyTorch alone, in place of what other methods schedule too."""
    graph: TaskGraph = pickle.loads(pickled)
    return graph
