"""PyTorch's `torch.autograd.graph.save_on_cpu` around the forward pass."""

from contextlib import AbstractContextManager
from typing import Any

import torch

from benchmarks.compare.copies import CopyMeter, HostMemory, hooks_within
from benchmarks.compare.peers.peer import Blocks, Peer, with_same_weights
from benchmarks.compare.step import Step, plain_step
from membench.core.step.workload import Workload
from membench.sweep.cells.baselines import Baseline, SaveOnCpu
from membench.sweep.cells.measured import callers_bytes


class _SaveApart(Baseline):
    """The same on the CPU, where it would copy nothing: its own hooks, with host memory apart from the device's."""

    def __init__(self, meter: CopyMeter) -> None:
        self._host = HostMemory(meter)

    def saving(self, workload: Workload) -> AbstractContextManager[Any]:
        return hooks_within(torch.autograd.graph.save_on_cpu(), self._host)


class SavedOnCpu(Peer):
    """Copy every saved tensor to the host when it is saved, and back when it is used."""

    def step(self, workload: Workload, blocks: Blocks) -> Step:
        own = with_same_weights(workload)
        if own.device.type == "cuda":
            return plain_step(own, SaveOnCpu().step(own))
        meter = CopyMeter(own.module.parameters())
        run = _SaveApart(meter).step(own)

        def count() -> Any:
            meter.clear()
            run()
            return meter.copies

        return Step(run, own.module, count, callers_bytes(own))
