"""Arguments of `membench.compile` and `membench.predict`, checked and converted."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.graph.precision import Precision
from membench.core.hardware.allocator import AllocatorSettings
from membench.core.hardware.cluster import Cluster
from membench.core.hardware.device import DeviceProfile, as_device
from membench.core.hardware.machine import Machine
from membench.core.step.arguments import as_arguments
from membench.core.step.opened import opened
from membench.core.step.optimizer import Make, WeightUpdate
from membench.core.step.workload import Workload
from membench.core.units import parse_bytes
from membench.strategies.base import Strategy, find_strategy

Batch = tuple[Any, Any] | Mapping[str, Any] | Tensor
"""``(inputs, targets)``, or inputs alone; see `workload_of`."""
OptimizerLike = str | Make | torch.optim.Optimizer | WeightUpdate | None
"""A name, a class of `torch.optim` or another package, a `functools.partial` of one, an instance, a `WeightUpdate`."""


def workload_of(
    module: nn.Module,
    loss: Callable[..., Tensor] | None,
    batch: Any,
    *,
    precision: Any = None,
    channels_last: bool = False,
    holds_output: bool = False,
) -> Workload:
    """Return the workload of a module, its loss and an example batch ``(inputs, targets)``.

    A batch of inputs alone may be a dict, and without a loss a tensor. A module of transformers that trains and has
    labels among its inputs has a loss by itself.

    Raises:
        MembenchError: the batch is not a pair, or there is no such precision; see also `Workload`.
    """
    if isinstance(batch, Mapping) or (loss is None and isinstance(batch, Tensor)):
        batch = batch, ()
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise MembenchError(
            "the batch is a pair (inputs, targets), each a tensor, a tuple or a dict; for inference it is (inputs, "
            "()), and for a network of transformers a dict with labels"
        )
    inputs, targets = (opened(as_arguments(each)) for each in batch)
    if loss is None and module.training and "labels" in inputs and _is_of_transformers(module):
        loss = loss_of_output
    formats = None if precision is None else Precision.of_step(precision)
    name = type(module).__name__
    return Workload(
        name, module, loss, inputs, targets, precision=formats, channels_last=channels_last, holds_output=holds_output
    )


def names_of(workload: Workload, update: WeightUpdate | None) -> dict[str, Any]:
    """Return the names of a step's model, precision and optimizer, as a prediction has them."""
    return {
        "model": workload.name,
        "precision": None if workload.precision is None else str(workload.precision),
        "optimizer": None if update is None else update.name,
    }


def loss_of_output(output: Any) -> Tensor:
    """Return the loss that a network of transformers returns where it gets labels."""
    found: Tensor = output.loss
    return found


def _is_of_transformers(module: nn.Module) -> bool:
    return any(each.__name__ == "PreTrainedModel" for each in type(module).__mro__)


def as_strategy(strategy: str | Strategy) -> Strategy:
    """Return a strategy that is given as such or by its name.

    Raises:
        UnsupportedStrategy: there is no strategy of that name.
        MembenchError: it is neither.
    """
    chosen = find_strategy(strategy)() if isinstance(strategy, str) else strategy
    if not isinstance(chosen, Strategy):
        raise MembenchError(f"the strategy is a name or an instance of a Strategy, not {strategy!r}")
    return chosen


def as_update(optimizer: OptimizerLike) -> WeightUpdate | None:
    """Return the update of the weights, given as such, as an optimizer, or by its name in ``conf/optimizer``.

    Raises:
        MembenchError: there is no such optimizer, or its package is not installed.
    """
    if optimizer is None or isinstance(optimizer, WeightUpdate):
        return optimizer
    if not isinstance(optimizer, str):
        return WeightUpdate(optimizer)
    update: WeightUpdate = configuration.load("optimizer", optimizer)
    return update


def as_bytes(size: str | float | None, name: str = "budget") -> int | None:
    """Return the size that an argument of that name gives, ``"200 MB"`` or a number of bytes, in bytes.

    Raises:
        MembenchError: it is not a size.
    """
    try:
        return None if size is None else parse_bytes(size)
    except ValueError as error:
        raise MembenchError(f"{name}: {error}") from error


def in_process(device: DeviceProfile, options: Mapping[str, Any]) -> DeviceProfile:
    """Return a device as it is in the process that runs the step, with torch's switches of this one.

    Args:
        options: `ProcessKeywords`; without one, or with None, the profile's own value stays.

    Raises:
        MembenchError: a setting of the allocator is not simulated, or a value is not a size.
    """
    allocator = options.get("allocator")
    context_bytes, also_bytes = (as_bytes(options.get(name), name) for name in ("context", "also"))
    return replace(
        device,
        allocator=device.allocator if allocator is None else AllocatorSettings.parse(allocator),
        context_bytes=device.context_bytes if context_bytes is None else context_bytes,
        also_bytes=device.also_bytes if also_bytes is None else also_bytes,
        benchmarks_convolutions=device.benchmarks_convolutions or torch.backends.cudnn.benchmark,
    )


def as_machine(machine: str | Machine | None, host_memory_bytes: int | None = None) -> Machine:
    """Return the machine that a simulated device is in, given as such or by its name in ``conf/machine``.

    Args:
        machine: None: the one of ``conf/machine/server.yaml``.
        host_memory_bytes: its memory; None: what it has.

    Raises:
        MembenchError: there is no such machine.
    """
    if not isinstance(machine, Machine):
        machine = configuration.load("machine", "server" if machine is None else machine)
    assert isinstance(machine, Machine)
    return machine if host_memory_bytes is None else replace(machine, memory_bytes=host_memory_bytes)


def as_cluster(
    cluster: str | Cluster,
    *,
    nodes: int | None = None,
    device: str | DeviceProfile | None = None,
    process: Mapping[str, Any] = MappingProxyType({}),
) -> Cluster:
    """Return a cluster that is given as such or by its name in ``conf/cluster``.

    Args:
        nodes: its hosts; None: as many as it has.
        device: device of its hosts; None: its own.
        process: see `in_process`.

    Raises:
        MembenchError: there is no such cluster, the number of hosts is not positive, the device has other links than
            the hosts, or a setting of the allocator is not simulated.
    """
    found: Cluster = configuration.load("cluster", cluster) if isinstance(cluster, str) else cluster
    hosts = found.hosts if nodes is None else nodes
    own = found.device if device is None else device
    profile = own and as_device(own)
    inside = in_process(profile, process) if isinstance(profile, DeviceProfile) else profile
    chosen = replace(found, hosts=hosts, device=own if inside == profile else inside)
    if own:
        _ = chosen.profile  # refuses a device that is not in such hosts before anything is captured
    return chosen


def as_folder(disk: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder of a disk; None: not given.

    Raises:
        MembenchError: it does not exist.
    """
    if disk is None:
        return None
    if not os.fspath(disk) or not Path(disk).is_dir():
        raise MembenchError(f"disk is an existing folder, not {os.fspath(disk)!r}; make it, or name another one")
    return Path(disk)
