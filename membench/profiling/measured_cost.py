"""MeasuredCost: isolated operators, once per operator and shapes, and the link, measured on the device at hand."""

import tempfile
import time
from collections.abc import Hashable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch

from membench.backends.accelerator_memory import drop_library_workspaces
from membench.backends.calls.fused_calls import prepare
from membench.backends.tensors import mismatched_outputs
from membench.core.graph.codec import ActivationCodec
from membench.core.graph.convolution import Algorithm
from membench.core.graph.task_graph import Kind, Phase, Role, Task, TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.core.hardware.machine import HostLimit
from membench.execution.measurement import synchronize
from membench.profiling.cache import CostCache
from membench.profiling.disk import DiskRates, measure_disk
from membench.profiling.issue import IssueTimes, measure_issue
from membench.profiling.link import Link, measure_link
from membench.profiling.operators import OperatorCost, OutputMismatch, key_of, measure_operators


class MeasuredCost(CostModel):
    """Measures each distinct operator call once, under torch's allocator, and keeps the result.

    Args:
        device: where tasks run.
        cache: earlier measurements, to which new ones are added; None: measurements end with the process.
        cuda_graph: steps are replayed as a CUDA graph, which the host issues at once.
        host_memory_bytes: the most that a step may hold in host memory; None: no limit.
        disk_folder: folder of the file for what does not fit there, which is the optimizer's states.

    Attributes:
        has_measured: whether operators ran in this process; then its first step is not a cold start.
        update_times_s: times of the tasks of an optimizer's update, which are not operators, by name.
    """

    def __init__(
        self,
        device: torch.device,
        cache: CostCache | None = None,
        *,
        cuda_graph: bool = False,
        host_memory_bytes: int | None = None,
        disk_folder: Path | None = None,
    ) -> None:
        self.device = device
        self.disk_folder = disk_folder or Path(tempfile.gettempdir())
        self.host_memory_bytes = host_memory_bytes
        self.has_measured = False
        self.update_times_s: dict[str, float] = {}
        self._cache = cache
        self._host_issues = device.type != "cpu" and not cuda_graph  # a CPU computes while it issues
        self._library_bytes = cache.library_bytes if cache else 0
        self._measured: dict[Hashable, OperatorCost] = {}
        self._codec_s: dict[tuple[ActivationCodec, int, int], float] = {}
        self._link = cache.link if cache else None

    @property
    def full_duplex(self) -> bool:
        return self.link.full_duplex

    @property
    def host_limit(self) -> HostLimit | None:
        if self.host_memory_bytes is None:
            return None
        return HostLimit(self.host_memory_bytes, on_disk=(Role.OPTIMIZER_STATE, Role.PENDING_GRADIENT))

    def annotate(self, graph: TaskGraph, *, exactly: bool = False) -> TaskGraph:
        """Return the graph with the workspaces of its operators, those measured now and those known before.

        Args:
            exactly: see `mismatched_outputs`.

        Raises:
            OutputMismatch: operators return, or returned when they were measured, other outputs than the graph has.
            UnsupportedModel: an operator does not run on synthetic data.
        """
        operators = [task for task in graph.tasks if _is_operator(task)]
        prepare((task.call for task in operators), self.device)
        # backward operators last: they would write past the end of a workspace that was taken to be smaller
        for is_backward in (False, True):
            chosen = [task for task in operators if (task.phase is Phase.BACKWARD) is is_backward]
            self._measure_missing(chosen, graph, exactly=exactly)
        tasks = (replace(task, workspace_bytes=self._workspace_bytes(task)) for task in graph.tasks)
        is_linear = any(task.kind is Kind.LINEAR for task in graph.tasks)
        return replace(graph, tasks=tuple(tasks), overhead_bytes=self._library_bytes if is_linear else 0)

    def _measure_missing(self, operators: list[Task], graph: TaskGraph, *, exactly: bool) -> None:
        """Measure the operators that have not been measured; refuse outputs that differ from the graph's."""
        missing: dict[Hashable, Task] = {}
        keys = [key_of(task) for task in operators]
        for key, task in zip(keys, operators, strict=True):
            if key in self._measured or key in missing:
                continue
            # a collective runs in all ranks or in none, and other ranks may have other measurements
            if self._cache and not task.collective and (known := self._cache.find(key)):
                self._measured[key] = known
            else:
                missing[key] = task
        if missing:
            self._measure(missing, graph)
        self._check_outputs(keys, operators, graph, exactly=exactly)

    def _cost_of(self, task: Task) -> OperatorCost:
        if task.phase is Phase.UPDATE:
            return OperatorCost(0, self.update_times_s.get(task.name, 0.0), ())
        if not _is_operator(task):
            return OperatorCost(0, 0.0, ())
        return self._measured[key_of(task)]

    def _workspace_bytes(self, task: Task) -> int:
        if task.phase is Phase.UPDATE:
            return task.workspace_bytes
        return self._measured[key_of(task)].workspace_bytes(task) if _is_operator(task) else 0

    def _check_outputs(self, keys: list[Hashable], operators: list[Task], graph: TaskGraph, *, exactly: bool) -> None:
        found = {}
        for key, task in zip(keys, operators, strict=True):
            assert task.call is not None
            returned = self._measured[key].outputs
            if outputs := mismatched_outputs(task.call, returned, graph, exactly=exactly):
                found[task] = outputs
        if found:
            raise OutputMismatch(graph, found)

    def task_time_s(self, task: Task) -> float:
        return self._cost_of(task).time_s

    def host_task_time_s(self, task: Task) -> float:
        return self._cost_of(task).time_s

    def algorithms(self, task: Task) -> tuple[Algorithm, ...]:
        """Return the operator as torch runs it: within one process there is no choice."""
        return (Algorithm("", self._workspace_bytes(task), self.task_time_s(task)),)

    def launch_time_s(self, task: Task) -> float:
        """Return 0: a task's time is that of kernels that follow other kernels."""
        return 0.0

    def task_issue_time_s(self, task: Task) -> float:
        if not self._host_issues:
            return 0.0
        return self._cost_of(task).issue_time_s + self._issue_times.task_s

    @property
    def copy_issue_time_s(self) -> float:
        return self._issue_times.copy_s if self._host_issues else 0.0

    def offload_time_s(self, size_bytes: int) -> float:
        return self.link.latency_s + size_bytes / self.link.device_to_host_bytes_per_s

    def prefetch_time_s(self, size_bytes: int) -> float:
        return self.link.latency_s + size_bytes / self.link.host_to_device_bytes_per_s

    def disk_read_time_s(self, size_bytes: int) -> float:
        return size_bytes / self._disk_rates.read_bytes_per_s

    def disk_write_time_s(self, size_bytes: int) -> float:
        return size_bytes / self._disk_rates.write_bytes_per_s

    def copy_delay_s(self, size_bytes: int) -> float:
        if self.device.type != "cpu":
            return 0.0
        return self._issue_times.copy_s + size_bytes * self.link.delay_s_per_byte

    def codec_time_s(self, codec: ActivationCodec, size_bytes: int, encoded_bytes: int) -> float:
        """Return the seconds of encoding an activation with half as many non-zeros as there is room for."""
        key = (codec, size_bytes, encoded_bytes)
        if key not in self._codec_s:
            elements = size_bytes // torch.float32.itemsize
            density = codec.capacity(elements, encoded_bytes) / (2 * max(1, elements))
            generator = torch.Generator(self.device).manual_seed(0)  # the caller's own draws stay as they are
            source = (torch.rand(elements, device=self.device, generator=generator) < density).float()
            target = torch.empty(encoded_bytes, dtype=torch.uint8, device=self.device)
            codec.encode_into(source, target)  # the first run is a cold start
            synchronize(self.device)
            start_s = time.perf_counter()
            codec.encode_into(source, target)
            synchronize(self.device)
            self._codec_s[key] = time.perf_counter() - start_s
        return self._codec_s[key]

    @property
    def link(self) -> Link:
        """Bandwidth between host and device, measured on first access."""
        if self._link is None:
            self._link = measure_link(self.device)
            self._save()
        return self._link

    @cached_property
    def _disk_rates(self) -> DiskRates:
        return measure_disk(self.disk_folder)

    @cached_property
    def _issue_times(self) -> IssueTimes:
        return measure_issue(self.device)

    def _measure(self, tasks: dict[Hashable, Task], graph: TaskGraph) -> None:
        held_bytes = _held_without_libraries(self.device)
        measured = measure_operators(tasks, graph, self.device)
        self.has_measured = True
        self._measured.update(measured)
        self._library_bytes = max(self._library_bytes, _held_bytes(self.device) - held_bytes)
        if self._cache:
            self._cache.add(measured)
        self._save()

    def _save(self) -> None:
        if self._cache:
            self._cache.library_bytes = self._library_bytes
            self._cache.link = self._link
            self._cache.save()


def _held_without_libraries(device: torch.device) -> int:
    """Return the allocated bytes after freeing a workspace that cuBLAS may keep."""
    if device.type == "cuda":
        drop_library_workspaces(device)
    return _held_bytes(device)


def _held_bytes(device: torch.device) -> int:
    return torch.accelerator.memory_allocated(device) if device.type != "cpu" else 0


def _is_operator(task: Task) -> bool:
    """Return whether a task runs by itself: it does not take over what the caller passes, or wait for other ranks."""
    return task.call is not None and not task.collective
