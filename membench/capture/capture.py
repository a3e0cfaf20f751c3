"""Workload -> TaskGraph: record the step, apply the passes, number the tasks that are left."""

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from torch import Tensor

from membench.capture.dissolve import dissolve
from membench.capture.kept import Unbuilt, built, kept_graph
from membench.capture.passes import (
    accumulate_in_place,
    accumulate_over_micro_batches,
    drop_unused,
    mark_partial_gradients,
    weight_gradient_first,
)
from membench.capture.plain import plain_tasks, with_held
from membench.capture.recorded import Recorded
from membench.capture.recording import Recording
from membench.capture.trace import Place, record
from membench.core.graph.call import Outputs, Value
from membench.core.graph.changed_tasks import numbered
from membench.core.graph.task_graph import EXTERNAL_ROLES, Block, Kind, Phase, Role, Task, TaskGraph
from membench.core.libraries.one_thread import CAPTURING
from membench.core.libraries.torch_internals import tree_leaves
from membench.core.step.fully_sharded import whole_weights
from membench.core.step.workload import Workload


@dataclass(frozen=True)
class CapturedStep:
    """A task graph, and the binding of its external blocks to a module and its arguments.

    Attributes:
        weights, buffers: block by qualified name.
        inputs, targets: block of each leaf of the arguments, in order; None if it is not a tensor.
        constants: tensors by block.
        wrappers: see `Recording`.
        recorded: to compare with a later recording; None: the step does not run again.
    """

    graph: TaskGraph
    weights: dict[str, int]
    buffers: dict[str, int]
    inputs: tuple[int | None, ...]
    targets: tuple[int | None, ...]
    constants: dict[int, Tensor]
    wrappers: dict[str, Tensor] = field(default_factory=dict)
    recorded: Recorded | None = None


def capture(
    workload: Workload,
    device: Place = None,
    seen: Mapping[Hashable, Outputs] = MappingProxyType({}),
    *,
    uses_values: bool = False,
    runs_again: bool = False,
) -> CapturedStep:
    """Capture the step of `workload`: forward, loss and the gradients of all weights, or the forward pass alone.

    Runs on fake tensors: needs no data and no device memory. Time is linear in the number of operators.

    Args:
        device: where the step is to run; None: where its tensors are. An `AnyGpu`: on a GPU that this machine does not
            need to have.
        seen: layouts of outputs there, by the signature of a call, where they differ from its shape function's.
        uses_values: sizes and numbers may depend on the values of module and batch, if those have data: the graph is
            that of this batch alone, and must not run on another.
        runs_again: also return what tells whether a later call is of the same step.

    Raises:
        UnsupportedModel: the step cannot be expressed as a graph; names the layer.
    """
    recorded = Recorded.of(workload, device, seen) if runs_again else None
    if recorded is None:
        with CAPTURING, whole_weights(workload.module):
            recording = record(workload, device, seen, uses_values=uses_values)
    else:
        recording = recorded.recording
    blocks = _with_roles(recording)
    of_plain = list(blocks)
    plain, renamed = plain_tasks(recording, of_plain)
    plain, held = with_held(plain, recording, of_plain, holds_gradients=workload.holds_gradients)
    tasks = drop_unused(dissolve(recording.tasks, blocks), blocks)
    mark_partial_gradients(tasks, blocks)
    tasks = accumulate_in_place(weight_gradient_first(tasks, blocks), blocks)
    graph = _graph(workload, recording, [*_taking(recording.given_up), *tasks], blocks, {})
    plain = [*_taking(recording.given_up | held), *plain]
    of_program = _graph(workload, recording, plain, of_plain, renamed, is_plain=True)
    return CapturedStep(
        graph=replace(graph, plain=of_program),
        weights=recording.weights,
        buffers=recording.buffers,
        inputs=tuple(recording.inputs),
        targets=tuple(recording.targets),
        constants=recording.constants,
        wrappers=recording.wrappers,
        recorded=recorded,
    )


def _taking(blocks: frozenset[int]) -> list[Task]:
    """Return the task that stands for taking blocks over from the caller; it costs no time, and runs once."""
    if not blocks:
        return []
    taken = tuple(sorted(blocks))
    return [Task(0, "inputs", Kind.OTHER, Phase.FORWARD, -1, (), taken, taken, launches=0, random=True)]


def _with_roles(recording: Recording) -> list[Block]:
    """Return the recorded blocks with the roles of the step's results, and of what it takes over."""
    blocks = list(recording.blocks)
    for index in recording.given_up:
        blocks[index] = replace(blocks[index], role=Role.GIVEN_UP)
    for name, value in recording.gradients.items():
        if value is not None:
            named = f"{name}:gradient"
            blocks[value.block] = replace(blocks[value.block], name=named, role=Role.WEIGHT_GRADIENT)
    if recording.loss is not None:
        blocks[recording.loss.block] = replace(blocks[recording.loss.block], role=Role.LOSS, name="loss")
    for value in tree_leaves((recording.output, recording.objects_after, recording.input_gradients)):
        if isinstance(value, Value) and blocks[value.block].role not in EXTERNAL_ROLES:
            blocks[value.block] = replace(blocks[value.block], role=Role.OUTPUT)
    return blocks


def _graph(
    workload: Workload,
    recording: Recording,
    tasks: list[Task],
    blocks: list[Block],
    renamed: dict[int, int],
    *,
    is_plain: bool = False,
) -> TaskGraph:
    """Return the graph of tasks and blocks; it adds gradients to accumulators in a micro-batch.

    Args:
        renamed: blocks that take the place of recorded ones.
    """
    loss = recording.loss

    def placed(value: Value | None) -> Value | None:
        return value and replace(value, block=renamed.get(value.block, value.block))

    results = {name: placed(value) for name, value in recording.gradients.items()}
    if workload.accumulates:
        assert loss is not None
        names = dict.fromkeys((*recording.completed, *results)) if is_plain else results
        single = [loss, *(value for name in names if (value := results[name]) is not None)]
        due = {value.block: recording.completed[name] for name, value in results.items() if value} if is_plain else {}
        total = accumulate_over_micro_batches(tasks, blocks, single, workload.loss_scale, due)
        loss, results = total[loss.block], {n: v and total[v.block] for n, v in results.items()}
    return TaskGraph(
        name=workload.name,
        batch_size=workload.batch_size,
        blocks=tuple(blocks),
        tasks=numbered(tasks),
        layers=tuple(recording.layers),
        loss=loss,
        gradients=tuple(results.items()),
        completed=tuple(recording.completed),
        output=recording.output,
        objects_after=recording.objects_after,
        depends_on_values=recording.depends_on_values,
        output_gradients=tuple(recording.output_gradients),
        input_gradients=tuple(map(placed, recording.input_gradients)),
        is_plain=is_plain,
    )


class Captures:
    """The captured steps of one workload, as a whole batch and in micro-batches: each size is captured once.

    Attributes:
        workload: the whole batch.
        device, uses_values, runs_again: see `capture`.
        prepared: a context in which a workload is captured, and which it is there.
    """

    def __init__(
        self,
        workload: Workload,
        device: Place = None,
        *,
        uses_values: bool = False,
        runs_again: bool = False,
        prepared: Callable[[Workload], AbstractContextManager[Workload]] = nullcontext,
    ) -> None:
        self.workload = workload
        self._prepared = prepared
        self.device = device
        self.uses_values = uses_values
        self.runs_again = runs_again
        self._steps: dict[int, CapturedStep] = {}
        self._kept: dict[int, TaskGraph] = {}
        self._seen: dict[Hashable, Outputs] = {}

    def in_channels_last(self) -> "Captures":
        """Return captures of the same step in that memory format."""
        return Captures(
            replace(self.workload, channels_last=True),
            self.device,
            uses_values=self.uses_values,
            runs_again=self.runs_again,
            prepared=self._prepared,
        )

    def at(self, size: int) -> CapturedStep:
        """Return the step on that many samples.

        Raises:
            UnsupportedModel: see `capture` and `Workload.of_size`.
        """
        if size not in self._steps:
            with CAPTURING, self._prepared(built(self.workload).of_size(size)) as workload:
                self._steps[size] = capture(
                    workload, self.device, self._seen, uses_values=self.uses_values, runs_again=self.runs_again
                )
        return self._steps[size]

    def learn(self, size: int, seen: Mapping[Hashable, Outputs]) -> bool:
        """Forget the step on that many samples, so that the next use captures it with these layouts; see `capture`.

        Returns:
            Whether a layout is new.
        """
        is_new = any(self._seen.get(call) != outputs for call, outputs in seen.items())
        self._seen.update(seen)
        del self._steps[size]
        return is_new

    def graph_at(self, size: int) -> TaskGraph:
        """Return the graph of the step on that many samples; see `at`."""
        if not isinstance(self.workload.module, Unbuilt):
            return self.at(size).graph
        if size not in self._kept:
            asked = size, self.device, self.uses_values
            self._kept[size] = kept_graph(self.workload, asked, lambda: self.at(size).graph)
        return self._kept[size]
