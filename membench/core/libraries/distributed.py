"""Processes that train one model together, each on its share of the batch: torch's default process group.

torchrun starts them; they communicate through Gloo on the CPU and through NCCL on GPUs. Without torchrun there is one
process, and these functions do nothing.
"""

import ctypes
import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Thread
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from membench.core.errors import ExchangeFailed, MembenchError
from membench.core.libraries.launched import Processes, launched

_ENGINES = {"cpu": "gloo", "cuda": "nccl"}

T = TypeVar("T")


def joined() -> Processes:
    """Return the process group that this process has joined; itself if there is none."""
    return Processes(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else Processes(0, 1)


@contextmanager
def join(backend: str, timeout_s: float) -> Iterator[None]:
    """Join the processes that torchrun started together with this one; without torchrun do nothing.

    Each process sees one GPU as its first, so that a schedule made by one of them names the same device in all.

    Args:
        backend: where steps run.
        timeout_s: how long a process waits for the others.

    Raises:
        MembenchError: the backend is not one that runs steps.
        ExchangeFailed: another process did not join in time.
    """
    if launched().count == 1:
        yield
        return
    if backend not in _ENGINES:
        raise MembenchError(
            f"backend={backend} does not use torchrun: one process simulates all devices of a cluster; "
            "start it without torchrun, or choose backend=cpu or backend=cuda"
        )
    if backend == "cuda":
        local = int(os.environ["LOCAL_RANK"])
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[local] if visible else str(local)
    with _exchange_errors(launched(), "a greeting"):
        dist.init_process_group(_ENGINES[backend], timeout=timedelta(seconds=timeout_s))
    try:
        yield
    finally:
        dist.destroy_process_group()
        # Gloo's threads end with the group, which cycles of modules and meshes hold. One that gives back a tensor of
        # Python's while the interpreter ends would abort the process
        gc.collect()


def average(tensor: Tensor, root: int | None, what: str) -> None:
    """Replace a tensor in place by its mean over all processes, without allocating memory.

    Args:
        root: the process that takes the mean; None: every process takes the mean of a part.
        what: shown in the error.

    Raises:
        ExchangeFailed: another process has ended, or did not answer in time.
    """
    with _exchange_errors(joined(), what):
        if root is None:
            dist.all_reduce(tensor)
        else:
            dist.reduce(tensor, root)
        _divide(tensor, dist.get_world_size())
        if root is not None:
            dist.broadcast(tensor, root)


def all_gather(sent: Tensor, ranks: int, group: dist.ProcessGroup, *, out: Tensor) -> Tensor:
    """Fill a tensor with those of all ranks, one after another, without memory as Gloo's all-gather allocates it.

    Raises:
        ExchangeFailed: see `average`.
    """
    parts = out.view(ranks, *sent.shape)
    parts[dist.get_rank(group)].copy_(sent)
    with _exchange_errors(joined(), "weights"):
        for rank in range(ranks):
            dist.broadcast(_unowned(parts[rank]), group=group, group_src=rank)
    return out


def reduce_scatter(sent: Tensor, operator: str, ranks: int, group: dist.ProcessGroup, *, out: Tensor) -> Tensor:
    """Fill a vector with this rank's part of the sum or, as ``"avg"``, of the mean over a group's ranks.

    What is sent is overwritten: Gloo adds up all of a copy of it, and so with these bits.

    Raises:
        ExchangeFailed: see `average`.
    """
    all_reduce(sent, "sum", group)
    part = sent.view(ranks, -1)[dist.get_rank(group)]
    if operator == "avg":
        _divide(part, ranks)
    return out.copy_(part)


def all_reduce(tensor: Tensor, operator: str, group: dist.ProcessGroup) -> Tensor:
    """Replace a tensor by its sum, ``"max"`` or, as ``"avg"``, mean over a group's ranks, in place and without memory.

    Raises:
        ExchangeFailed: see `average`.
    """
    with _exchange_errors(joined(), "gradients"):
        dist.all_reduce(_unowned(tensor), _REDUCTIONS[operator], group)
    if operator == "avg":
        _divide(tensor, dist.get_world_size(group))
    return tensor


def send(tensors: Sequence[Tensor], group: dist.ProcessGroup, peer: int, tag: int) -> None:
    """Send a copy of a tensor to the process so many places further in a group, without waiting for its receipt.

    Two neighbours that each waited for the other to receive would wait for ever. The copy is in memory of Python's.

    Raises:
        ExchangeFailed: see `average`.
    """
    copy = torch.frombuffer(bytearray(tensors[0].nbytes), dtype=torch.uint8)
    copy.copy_(tensors[0].view(torch.uint8))
    with _exchange_errors(joined(), "a stage's results"):
        sent = dist.isend(copy, group=group, group_dst=_peer(group, peer), tag=tag)

    def keep_until_received() -> None:
        with suppress(RuntimeError):  # the other process has ended: what this one waits for next says so
            assert sent is not None
            sent.wait()

    Thread(target=keep_until_received, daemon=True).start()


def receive(tensors: Sequence[Tensor], group: dist.ProcessGroup, peer: int, tag: int) -> None:
    """Fill a tensor with what the process has sent that is so many places further in a group.

    Raises:
        ExchangeFailed: see `average`.
    """
    with _exchange_errors(joined(), "a stage's results"):
        dist.recv(_unowned(tensors[0]), group=group, group_src=_peer(group, peer), tag=tag)


def _peer(group: dist.ProcessGroup, peer: int) -> int:
    return (dist.get_rank(group) + peer) % dist.get_world_size(group)


_REDUCTIONS = {
    "avg": dist.ReduceOp.SUM,  # Gloo offers no means
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "product": dist.ReduceOp.PRODUCT,
    "sum": dist.ReduceOp.SUM,
}
"""By the names of functional collectives."""


def _unowned(tensor: Tensor) -> Tensor:
    """Return a contiguous tensor's elements as one that does not keep their memory.

    Gloo's threads let go of a tensor some time after its collective has ended, and with it would free its memory then.
    """
    memory = (ctypes.c_byte * tensor.nbytes).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype)


def _divide(tensor: Tensor, by: int) -> None:
    # a Python number would become a tensor of torch's allocator, in every call
    tensor.div_(torch.frombuffer(bytearray(tensor.itemsize), dtype=tensor.dtype).fill_(by).squeeze())


def from_first(make: Callable[[], T], what: str) -> T:
    """Return in every process what the first process makes.

    Raises:
        MembenchError: the first process's error, in every process.
        ExchangeFailed: see `average`.
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
    with _exchange_errors(processes, what):
        dist.broadcast_object_list(made, 0)
    if isinstance(made[0], MembenchError):
        raise made[0]
    return made[0]  # type: ignore[return-value]


def broadcast_state(module: nn.Module) -> None:
    """Set the weights and buffers of every process to the first one's.

    Raises:
        MembenchError: this process has not joined a process group.
        ExchangeFailed: see `average`.
    """
    if not dist.is_initialized():
        raise MembenchError(
            "there is no group of processes to exchange gradients with; start them with torchrun and call "
            "torch.distributed.init_process_group, or leave exchange out"
        )
    broadcast([*module.parameters(), *module.buffers()], dist.group.WORLD)


def broadcast(tensors: Iterable[Tensor], group: dist.ProcessGroup | None) -> None:
    """Set tensors to those of a group's first process.

    Raises:
        ExchangeFailed: see `average`.
    """
    with _exchange_errors(joined(), "weights"):
        for tensor in tensors:
            dist.broadcast(tensor.detach(), group=group, group_src=0)


@contextmanager
def _exchange_errors(processes: Processes, what: str) -> Iterator[None]:
    """Turn the errors of torch's engines into an ExchangeFailed."""
    try:
        yield
    except RuntimeError as error:
        raise ExchangeFailed(what, processes.rank, processes.count) from error
