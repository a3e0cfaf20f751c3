"""A step's prediction: its memory from the planned schedules, its time from the simulated ones."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from statistics import mean

from membench.core.graph.schedule import RepeatedSchedule
from membench.core.graph.task_graph import Kind, Mode, Phase, TaskGraph
from membench.core.hardware.allocator import DEFAULT, AllocatorSettings
from membench.core.hardware.device import DeviceProfile
from membench.core.result import Result
from membench.core.step.torch_settings import unpredicted
from membench.core.units import per_second
from membench.cost.kernels import priced_by_bytes
from membench.planning.memory.device_memory import device_memory
from membench.planning.memory.holders import held_at_peak_bytes, returned_in_objects_bytes
from membench.planning.memory.liveness import host_peak_bytes
from membench.steps.measurement import collectives_of
from membench.steps.predicted.intervals import MEMORY, TIME, Interval, StepKind, has_published_times, ratios_of
from membench.steps.simulated_step import SimulatedStep


@dataclass(frozen=True)
class Prediction(Result, text="membench.steps.predicted.text", picture="membench.pictures.prediction"):
    """Predicted memory and time of a step on a device. All of it is simulated.

    Attributes:
        device: name of the device.
        model, precision, optimizer: their names, as far as they are known.
        batch_size: samples of the step.
        allocated_bytes: peak of the tensors and workspaces that the step holds.
        reserved_bytes: peak of what PyTorch's caching allocator holds for them on the device, fragmentation included;
            of a step that does not fit, on a device that has the memory.
        used_bytes: `reserved_bytes` and the context, as nvidia-smi shows; None: the device's context is not known.
        step_time_s: seconds of a step, on a device that has the memory if the step does not fit.
        fits: whether the device has the memory, after the caching allocator has returned what it does not use.
        capacity_bytes: memory of the device.
        host_bytes: host memory of what has its home there, of copies of what leaves the device, and of states that
            kernels read there: that of one host, of all its ranks together; of a pipeline, of the host whose ranks have
            the most.
        parts_bytes: what the allocated peak consists of: weights, gradients, activations ...; adds up to
            `allocated_bytes`.
        kind: by which errors of such predictions differ.
        cache_bytes: size of tensors that the step returns in objects: the keys and values of all sequences in a step of
            inference.
        depends_on_values: sizes were computed from the values of this batch, so that the prediction holds for it alone.
        priced_by_bytes: kernels of libraries, ``"library.name"``, whose time is that of moving their arguments and
            results. A formula that `torch.utils.flop_counter.register_flop_formula` has registered adds that of
            operations.
        unpredicted: a sentence for each setting of torch that the program has made, that changes the step, and that is
            not predicted.
        exposed_communication_s: seconds of a step in which a rank does nothing but take part in collectives.
        host_waits_s: seconds of a step in which the device waits for the host to issue a kernel.
        utilization: the seconds that the step's operations would take at the device's rates of products, without those
            of recomputation, over those that it takes (MFU).
        stages: in a pipeline, the prediction of a rank of each place in it; otherwise empty.

    Of several GPUs it is the prediction of one rank, but for `host_bytes`: all are alike, or else the one with the
    greatest memory.
    """

    device: str
    batch_size: int
    allocated_bytes: int
    reserved_bytes: int
    used_bytes: int | None
    step_time_s: float
    fits: bool
    capacity_bytes: int
    parts_bytes: Mapping[str, int]
    kind: StepKind
    host_bytes: int = 0
    cache_bytes: int = 0
    depends_on_values: bool = False
    priced_by_bytes: tuple[str, ...] = ()
    unpredicted: tuple[str, ...] = ()
    exposed_communication_s: float = 0.0
    host_waits_s: float = 0.0
    utilization: float = 0.0
    stages: tuple["Prediction", ...] = ()
    model: str = field(default="", compare=False)
    precision: str | None = field(default=None, compare=False)
    optimizer: str | None = field(default=None, compare=False)

    @property
    def samples_per_s(self) -> float:
        """Samples of the batch per second."""
        return per_second(self.batch_size, self.step_time_s)

    @property
    def shown_bytes(self) -> int:
        """What the card shows: `used_bytes`, or `reserved_bytes` where that is not known."""
        return self.reserved_bytes if self.used_bytes is None else self.used_bytes

    @property
    def step_time_interval_s(self) -> Interval:
        """The bounds between which nine of ten published steps of this kind lie, relative to their predictions."""
        return ratios_of(TIME, self.kind).interval(self.step_time_s)

    @property
    def shown_interval_bytes(self) -> Interval:
        """The same for `shown_bytes`."""
        return ratios_of(MEMORY, self.kind).interval(self.shown_bytes)

    @property
    def fit_probability(self) -> float | None:
        """The probability that the device has the memory; None: the size is not why the step does not fit.

        A step that fits after the caching allocator has returned what it does not use takes at most the memory.
        """
        if not self.fits and self.shown_bytes <= self.capacity_bytes:
            return None
        shown_bytes = min(self.shown_bytes, self.capacity_bytes) if self.fits else self.shown_bytes
        return ratios_of(MEMORY, self.kind).probability_within(self.capacity_bytes / max(shown_bytes, 1))


def unpredicted_settings(graph: TaskGraph, allocator: AllocatorSettings) -> tuple[str, ...]:
    """Return a sentence for each setting of torch in this process that changes a step, and is not predicted."""
    kinds = {task.kind for task in graph.tasks}
    return unpredicted(
        trains=graph.mode is Mode.TRAINING,
        convolves=Kind.CONVOLUTION in kinds,
        allocates_as_described=allocator != DEFAULT,
    )


def of_stages(predictions: Iterable[Prediction]) -> Prediction:
    """Return the prediction of a pipeline: of the place in it with the greatest memory."""
    stages = tuple(predictions)
    return replace(
        max(stages, key=lambda stage: stage.reserved_bytes),
        fits=all(stage.fits for stage in stages),
        utilization=mean(stage.utilization for stage in stages),
        stages=stages if len(stages) > 1 else (),  # a single one has the micro-batches of a step
    )


def after_rounds(rounds: float, first: Prediction, second: Prediction) -> Prediction:
    """Return what is a number of rounds of micro-batches behind a prediction, if a second one is one round behind it.

    What the allocator reserves beyond what is allocated changes by chance from one round to the next, and is taken to
    stay.
    """

    def value_of(name: str, weigh: Callable[[Prediction], float] = lambda _: 1.0) -> float:
        values = [getattr(each, name) * weigh(each) for each in (first, second)]
        return float(values[0] + rounds * (values[1] - values[0]))

    step_time_s = value_of("step_time_s")
    allocated_bytes = round(value_of("allocated_bytes"))
    reserved_bytes = allocated_bytes + max(each.reserved_bytes - each.allocated_bytes for each in (first, second))
    used_bytes = second.used_bytes and reserved_bytes + second.used_bytes - second.reserved_bytes
    parts = {name: (first.parts_bytes.get(name, 0), held) for name, held in second.parts_bytes.items()}
    return replace(
        second,
        batch_size=round(value_of("batch_size")),
        allocated_bytes=allocated_bytes,
        reserved_bytes=reserved_bytes,
        used_bytes=used_bytes,
        fits=second.fits and (used_bytes or reserved_bytes) <= second.capacity_bytes,
        parts_bytes={name: round(few + rounds * (more - few)) for name, (few, more) in parts.items()},
        host_bytes=round(value_of("host_bytes")),
        step_time_s=step_time_s,
        exposed_communication_s=value_of("exposed_communication_s"),
        host_waits_s=value_of("host_waits_s"),
        utilization=value_of("utilization", lambda each: each.step_time_s) / (step_time_s or inf),
    )


def predicted(runs: tuple[RepeatedSchedule, ...], step: SimulatedStep, device: DeviceProfile) -> Prediction:
    """Return the prediction of a planned step, which was simulated, of a rank that is alone in its host."""
    largest = max((run.schedule for run in runs), key=lambda schedule: schedule.peak_bytes)
    memory = device_memory(runs, device)
    host_bytes = max(host_peak_bytes(run.schedule) for run in runs)
    return Prediction(
        device=device.name,
        batch_size=sum(run.samples for run in runs),
        allocated_bytes=memory.allocated_bytes,
        reserved_bytes=memory.reserved_bytes,
        used_bytes=memory.used_bytes,
        step_time_s=step.step_time_s,
        fits=memory.fits,
        capacity_bytes=device.memory_bytes,
        parts_bytes=held_at_peak_bytes(largest),
        kind=StepKind(
            trains=largest.graph.mode is Mode.TRAINING,
            several=False,
            copies=host_bytes > 0,
            measured=has_published_times(device.name),
        ),
        host_bytes=host_bytes,
        cache_bytes=returned_in_objects_bytes(largest.graph),
        depends_on_values=largest.graph.depends_on_values,
        priced_by_bytes=priced_by_bytes(largest.graph.tasks),
        utilization=sum(run.count * _at_peak_s(run.schedule.graph, device) for run in runs) / (step.step_time_s or inf),
        exposed_communication_s=sum(
            run.count * timeline.exposed_s(collectives_of(run.schedule))
            for run, timeline in zip(runs, step.timelines, strict=True)
        ),
        host_waits_s=sum(run.count * timeline.host_waits_s for run, timeline in zip(runs, step.timelines, strict=True)),
    )


def _at_peak_s(graph: TaskGraph, device: DeviceProfile) -> float:
    """Return the seconds of a step's operations at the device's rates, without those that run again."""
    tasks = (task for task in graph.tasks if not task.is_recomputed and task.phase is not Phase.UPDATE)
    return sum(task.operations / device.product_ops_per_s(task.precision) for task in tasks if task.operations)
