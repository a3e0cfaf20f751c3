"""Seconds from a device's datasheet rates and a framework's efficiency."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

import torch

from membench.core.errors import MembenchError
from membench.core.graph.codec import ActivationCodec
from membench.core.graph.convolution import Algorithm
from membench.core.graph.task_graph import Kind, Phase, Task, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.efficiency import Efficiency
from membench.core.hardware.machine import HostLimit, Machine
from membench.core.hardware.mesh import Mesh
from membench.cost.collectives import collective_time_s
from membench.cost.convolution import ConvolutionAlgorithm, algorithm_work
from membench.cost.kernels import SameKernels, computes_both_gradients, kernels_of, launches
from membench.cost.library_memory import layout_copies_bytes
from membench.cost.rates import kernel_time_s
from membench.cost.waves import task_waves, tile_fill, wave_efficiency

ARITHMETIC_KINDS = frozenset({Kind.CONVOLUTION, Kind.LINEAR, Kind.ATTENTION})
"""Kinds bound by the arithmetic rate or, where the framework's efficiency asks for it, by the longer of the two.

Every other kind is bound by the bandwidth of device memory.
"""


KNOWN = 100_000
"""The most tasks whose seconds are kept: planners ask for those of each task many times."""


class RooflineCost(CostModel):
    """Prices a task by the one rate that bounds its kind.

    Seconds of a task are its floating-point operations over the reached arithmetic rate (operations/s), or the bytes
    that it moves over the reached bandwidth (bytes/s). A convolution with an algorithm of its own takes the longer of
    the two: for the algorithm's operations, and for the bytes of its tensors and workspace. Where the efficiency has
    `Efficiency.half_waves`, a task with few thread blocks reaches less of either rate; with `tile_channels`, a
    convolution's operations count in whole tiles. Where it has
    `Efficiency.kernels`, a task is priced by its kernels (`membench.cost.rates`). Seconds of a copy are latency plus
    bytes over the link's rate.

    Args:
        device: peak rates, and the rates of pinned copies.
        efficiency: fractions of these peaks that the framework's kernels reach.
        machine: that runs tasks of the host, as the device's rank has it (`Cluster.share_of`); None: there are none.
        mesh: mesh of the ranks that collectives are between; None: there are none.

    Raises:
        MembenchError: the efficiency names an unknown algorithm, or lacks the one that always applies; or it depends on
            waves, and the device's multiprocessors are not known.
    """

    def __init__(
        self, device: DeviceProfile, efficiency: Efficiency, machine: Machine | None = None, mesh: Mesh | None = None
    ) -> None:
        self._device = device
        self._machine = machine
        self._mesh = mesh
        self._efficiency = efficiency
        self._operations_per_s = device.arithmetic_ops_per_s * efficiency.arithmetic
        self._memory_bytes_per_s = device.memory_bytes_per_s * efficiency.memory
        self._fractions = _checked(efficiency.convolution)
        self._known_s = lru_cache(KNOWN)(lambda same: self._kernels_s(same.task))
        if efficiency.half_waves and device.multiprocessors is None:
            raise MembenchError(
                f"device {device.name!r} has no multiprocessors, over which this framework's kernels are spread; add "
                "their number to its file"
            )

    def __reduce__(self) -> tuple[type["RooflineCost"], tuple[object, ...]]:
        """Return what makes an equal one in another process, without the times that are known here."""
        return RooflineCost, (self._device, self._efficiency, self._machine, self._mesh)

    @property
    def collective_share(self) -> float:
        return 0.0 if self._mesh is None else self._mesh.cluster.collective_share

    @property
    def full_duplex(self) -> bool:
        return self._device.full_duplex

    def annotate(self, graph: TaskGraph) -> TaskGraph:
        """Return the graph with cuDNN's copies of layout under PyTorch; others' workspaces are in an overhead."""
        if self._efficiency.kernels is None:
            return graph
        copied = {task.index: layout_copies_bytes(task, self._device) for task in graph.tasks}
        if not any(copied.values()):
            return graph
        tasks = (
            replace(task, workspace_bytes=copied[task.index]) if copied[task.index] else task for task in graph.tasks
        )
        return replace(graph, tasks=tuple(tasks))

    def task_time_s(self, task: Task) -> float:
        """Return the seconds of a task with its algorithm, or with the framework's own choice where it has none.

        Raises:
            MembenchError: the framework has no such algorithm for the task.
        """
        if task.collective is not None:
            if self._mesh is None:
                raise MembenchError(
                    "the step has collectives between ranks, as its module is divided over them; predict it with "
                    "membench.predict(..., cluster='dgx_h100', parallel={'tp': 8})"
                )
            group = self._mesh.group(task.collective.axis)
            return collective_time_s(self._mesh.cluster, group, task.collective)
        if task.algorithm:
            algorithm = self._algorithm(task, task.algorithm)
            if algorithm is None:
                raise MembenchError(f"the framework has no algorithm {task.algorithm!r} for {task.name}")
            return algorithm.time_s
        if self._efficiency.kernels is not None:
            return self._kernels_s(task) if task.call is None else self._known_s(SameKernels(task))
        moving_s = task.moved_bytes / self._memory_bytes_per_s
        if task.kind not in ARITHMETIC_KINDS:
            return moving_s / self.occupancy(task)
        time_s = task.operations / tile_fill(task, self._efficiency.tile_channels) / self._operations_per_s
        if task.convolution is not None:
            time_s /= self._efficiency.passes.get(task.gradient_of or Phase.FORWARD, 1.0)
        if self._efficiency.bandwidth_bounds_products:
            time_s = max(time_s, moving_s)
        return time_s / self.occupancy(task)

    def _kernels_s(self, task: Task) -> float:
        rates = self._efficiency.kernels
        assert rates is not None
        kernels_s = sum(kernel_time_s(kernel, rates, self._device) for kernel in kernels_of(task))
        return kernels_s + self._link_time_s(task.host_bytes)

    def host_task_time_s(self, task: Task) -> float:
        assert self._machine is not None, "tasks of the host need a machine"
        return task.moved_bytes / self._machine.memory_bytes_per_s

    @property
    def host_limit(self) -> HostLimit | None:
        machine = self._machine
        if machine is None:
            return None
        return HostLimit(machine.memory_bytes, machine.disk_bytes or 0, ranks=machine.ranks)

    def disk_read_time_s(self, size_bytes: int) -> float:
        assert self._machine and self._machine.disk_read_bytes_per_s, "a disk tier needs a machine's disk"
        return size_bytes / self._machine.disk_read_bytes_per_s

    def disk_write_time_s(self, size_bytes: int) -> float:
        assert self._machine and self._machine.disk_write_bytes_per_s, "a disk tier needs a machine's disk"
        return size_bytes / self._machine.disk_write_bytes_per_s

    def _link_time_s(self, host_bytes: int) -> float:
        """Return the seconds to read host memory and to write it, which kernels on it take in addition."""
        device = self._device
        return host_bytes / device.host_to_device_bytes_per_s + host_bytes / device.device_to_host_bytes_per_s

    def occupancy(self, task: Task) -> float:
        """Return the fraction of its rate that a task reaches with the thread blocks that it has."""
        if self._device.multiprocessors is None:
            return 1.0
        waves = task_waves(task, self._device.multiprocessors, self._efficiency.tile_channels)
        return wave_efficiency(waves, self._efficiency.half_waves)

    def task_share(self, task: Task) -> float:
        return self.occupancy(task) if self._efficiency.half_waves else 1.0

    def algorithms(self, task: Task) -> tuple[Algorithm, ...]:
        """Return cuDNN's algorithms that apply to a convolution; other tasks have one, the framework's own.

        Another task is also one that computes both gradients of a convolution: cuDNN has no such call.
        Those without workspace are among them even if the task's tensors alone exceed the device's memory.
        """
        if task.convolution is None or not self._fractions or computes_both_gradients(task):
            return (Algorithm("", task.workspace_bytes, self.task_time_s(task)),)
        found: Iterable[Algorithm] = filter(None, (self._algorithm(task, name) for name in self._fractions))
        if self._efficiency.algorithms_fit_alone:
            room_bytes = max(0, self._device.memory_bytes - task.moved_bytes)
            found = (algorithm for algorithm in found if algorithm.workspace_bytes <= room_bytes)
        return tuple(sorted(found, key=lambda algorithm: (algorithm.time_s, algorithm.workspace_bytes)))

    def _algorithm(self, task: Task, name: str) -> Algorithm | None:
        """Return an algorithm for a convolution, or None where it does not apply or the framework lacks it."""
        if task.convolution is None or name not in self._fractions:
            return None
        algorithm = ConvolutionAlgorithm(name)
        needed = algorithm_work(algorithm, task.convolution, task.gradient_of)
        if needed is None:
            return None
        rate = self._device.arithmetic_ops_per_s * self._fractions[algorithm]
        moved_bytes = task.moved_bytes + needed.staged_bytes
        time_s = max(needed.operations / rate, moved_bytes / self._memory_bytes_per_s)
        return Algorithm(algorithm, needed.workspace_bytes, time_s / self.occupancy(task))

    def task_issue_time_s(self, task: Task) -> float:
        """Return the host's seconds for a task's kernels; 0 where the framework's are not known."""
        kernels = self._efficiency.kernels
        if kernels is None:
            return 0.0
        return launches(task) * (kernels.compiled_issue_s if task.is_compiled else kernels.issue_s)

    @property
    def waits_between_passes(self) -> bool:
        kernels = self._efficiency.kernels
        return kernels is not None and kernels.waits_between_passes

    @property
    def copy_issue_time_s(self) -> float:
        """0: the host issues without delay."""
        return 0.0

    def launch_time_s(self, task: Task) -> float:
        """Return the seconds before a task's work; those of the step precede its first task."""
        step_s = self._efficiency.step_s if task.index == 0 else 0.0
        kernels = self._efficiency.kernels
        if kernels is None:
            return self._efficiency.launch_s + step_s
        return kernels.kernel_s * launches(task) + step_s

    def offload_time_s(self, size_bytes: int) -> float:
        return self._device.copy_latency_s + size_bytes / self._device.device_to_host_bytes_per_s

    def prefetch_time_s(self, size_bytes: int) -> float:
        return self._device.copy_latency_s + size_bytes / self._device.host_to_device_bytes_per_s

    def codec_time_s(self, codec: ActivationCodec, size_bytes: int, encoded_bytes: int) -> float:
        """Return the seconds to move both forms once, at the rate that the codec's streams reach together.

        Where a library's conversions go through a wider form, that form is moved. Narrowing it is not counted.
        """
        moved_bytes = size_bytes + max(encoded_bytes, self._wider_form_bytes(codec, size_bytes, encoded_bytes))
        one_stream = self._efficiency.memory if self._efficiency.codec is None else self._efficiency.codec
        speedup = min(codec.streams, self._efficiency.codec_streams)
        bytes_per_s = self._device.memory_bytes_per_s * one_stream * speedup
        return self._efficiency.launch_s + moved_bytes / bytes_per_s

    def codec_share(self, codec: ActivationCodec) -> float:
        return min(1.0, codec.streams / self._efficiency.codec_streams)

    def _wider_form_bytes(self, codec: ActivationCodec, size_bytes: int, encoded_bytes: int) -> int:
        nonzero_bytes = self._efficiency.codec_nonzero_bytes
        elements = size_bytes // torch.float32.itemsize
        return nonzero_bytes * codec.capacity(elements, encoded_bytes) if nonzero_bytes else 0


def _checked(fractions: Mapping[str, float]) -> dict[str, float]:
    known = tuple(ConvolutionAlgorithm)
    for name in fractions:
        if name not in known:
            raise MembenchError(f"there is no convolution algorithm {name!r}; choose one of {', '.join(known)}")
    if fractions and ConvolutionAlgorithm.IMPLICIT_GEMM not in fractions:
        raise MembenchError(
            f"a choice of convolution algorithms needs {ConvolutionAlgorithm.IMPLICIT_GEMM}, which always applies"
        )
    return dict(fractions)
