"""Processes that train one model together, each on its share of the batch: torch's default process group.

torchrun starts them; on the CPU they meet through Gloo, on GPUs through NCCL. Where nobody started several, a process is
alone, and nothing here costs it anything.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor, nn

from membench.core.errors import ExchangeFailed, MembenchError
from membench.core.launched import Processes, launched

_ENGINES = {"cpu": "gloo", "cuda": "nccl"}

T = TypeVar("T")


def joined() -> Processes:
    """Return the processes that this one has joined; itself where it is alone."""
    return Processes(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else Processes(0, 1)


@contextmanager
def join(backend: str, timeout_s: float) -> Iterator[None]:
    """Join the processes that torchrun has started together with this one, if it has.

    Each process sees one GPU, the first of its own, so that a schedule made by one of them names the device of all.

    Args:
        backend: where steps run.
        timeout_s: how long a process waits for the others before it gives up.

    Raises:
        MembenchError: the backend does not run.
        ExchangeFailed: the others did not come.
    """
    if launched().count == 1:
        yield
        return
    if backend not in _ENGINES:
        raise MembenchError(
            f"backend={backend} needs no torchrun: one process plays all devices of a cluster; "
            "start it without, or choose backend=cpu or backend=cuda"
        )
    if backend == "cuda":
        local = int(os.environ["LOCAL_RANK"])
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[local] if visible else str(local)
    with _meeting(launched(), "a greeting"):
        dist.init_process_group(_ENGINES[backend], timeout=timedelta(seconds=timeout_s))
    try:
        yield
    finally:
        dist.destroy_process_group()


def average(tensor: Tensor, root: int | None, what: str) -> None:
    """Put the mean over all processes in a tensor's place, without taking memory for it.

    Args:
        root: the process that takes the mean; None: all of them, each a part.
        what: shown in the error.

    Raises:
        ExchangeFailed: another process has ended, or did not answer in time.
    """
    with _meeting(joined(), what):
        if root is None:
            dist.all_reduce(tensor)
        else:
            dist.reduce(tensor, root)
        tensor.div_(dist.get_world_size())  # Gloo has no mean of its own
        if root is not None:
            dist.broadcast(tensor, root)


def from_first(make: Callable[[], T], what: str) -> T:
    """Let the first process make something, and give it to all; alone, just make it.

    Raises:
        MembenchError: the first process's refusal, in every process.
        ExchangeFailed: as `average`.
    """
    processes = joined()
    if processes.count == 1:
        return make()
    made: list[T | MembenchError | None] = [None]
    if processes.rank == 0:
        try:
            made[0] = make()
        except MembenchError as error:
            made[0] = error
    with _meeting(processes, what):
        dist.broadcast_object_list(made, 0)
    if isinstance(made[0], MembenchError):
        raise made[0]
    return made[0]  # type: ignore[return-value]


def take_over(module: nn.Module) -> None:
    """Let every process start from the first one's weights and buffers.

    Raises:
        MembenchError: this process has joined no others.
        ExchangeFailed: as `average`.
    """
    if not dist.is_initialized():
        raise MembenchError(
            "there is no group of processes to exchange gradients with; start them with torchrun and call "
            "torch.distributed.init_process_group, or leave exchange out"
        )
    with _meeting(joined(), "weights"):
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.detach(), 0)


@contextmanager
def _meeting(processes: Processes, what: str) -> Iterator[None]:
    """Say in one sentence what torch's engines report in their own words."""
    try:
        yield
    except RuntimeError as error:
        raise ExchangeFailed(what, processes.rank, processes.count) from error
