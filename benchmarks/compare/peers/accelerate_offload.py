"""Inference with weights on the host by accelerate's `cpu_offload`."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.compare.copies import Copies, CopiesBetweenDevices, CopyMeter
from benchmarks.compare.peers.peer import Blocks, Peer, with_same_weights
from benchmarks.compare.step import Step
from membench.core.errors import UnsupportedStrategy
from membench.core.step.arguments import tensors_in
from membench.core.step.workload import Workload

USED_WHOLE = ["MultiheadAttention"]
"""Classes that read weights of their submodules without calling these; accelerate copies all of them at once."""


class CopiedOnRead(Mapping[str, Tensor]):
    """Weights on the host of a run on the CPU; every reader gets a copy in device memory.

    Args:
        meter: counts the copies.
    """

    def __init__(self, tensors: Mapping[str, Tensor], meter: CopyMeter) -> None:
        self._tensors, self._meter = tensors, meter

    def __getitem__(self, name: str) -> Tensor:
        self._meter.returns(self._tensors[name])
        return self._tensors[name].clone()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class AccelerateOffload(Peer):
    """A layer's weights and buffers are copied to the device before it runs, and dropped after it."""

    def step(self, workload: Workload, blocks: Blocks) -> Step:
        try:
            from accelerate import cpu_offload
        except ImportError as error:
            raise UnsupportedStrategy(
                f"accelerate cannot be imported ({error}); pip install 'membench[peers]'"
            ) from error
        device, own, meter = workload.device, with_same_weights(workload), CopyMeter(())
        state: Mapping[str, Tensor] = {
            name: tensor.detach().cpu() for name, tensor in workload.module.state_dict().items()
        }
        if device.type == "cpu":
            state = CopiedOnRead(state, meter)
        cpu_offload(own.module, device, offload_buffers=True, state_dict=state, preload_module_classes=USED_WHOLE)

        def run() -> Any:
            with torch.no_grad():
                return own.output()

        def count() -> Copies:
            meter.clear()
            if device.type == "cpu":
                run()
            else:
                with CopiesBetweenDevices(meter):
                    run()
            return meter.copies

        return Step(run, own.module, count, sum(each.nbytes for each in tensors_in(workload.inputs)))
