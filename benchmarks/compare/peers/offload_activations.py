"""torchtune's and TRL's `OffloadActivations`, which copy on a stream of CUDA of their own."""

from contextlib import AbstractContextManager
from typing import Any

from benchmarks.compare.peers.peer import Blocks, Peer, with_same_weights
from benchmarks.compare.step import Step, plain_step
from membench.core.errors import UnsupportedStrategy
from membench.core.step.workload import Workload
from membench.sweep.cells.baselines import Baseline, TorchtuneOffload


class _TrlOffload(Baseline):
    def saving(self, workload: Workload) -> AbstractContextManager[Any]:
        try:
            from trl.models.activation_offloading import OffloadActivations
        except ImportError as error:
            raise UnsupportedStrategy(
                f"TRL's OffloadActivations cannot be imported ({error}); pip install 'membench[peers]'"
            ) from error
        return OffloadActivations(use_pin_memory=True, use_streams=True)


class _OffloadActivations(Peer):
    baseline: Baseline

    def step(self, workload: Workload, blocks: Blocks) -> Step:
        own = with_same_weights(workload)
        if own.device.type != "cuda":
            raise UnsupportedStrategy("it copies on CUDA streams, and this run is on the CPU")
        with self.baseline.saving(own):
            pass  # refuses what is not installed
        return plain_step(own, self.baseline.step(own))


class TorchtuneOffloadActivations(_OffloadActivations):
    """torchtune's, with streams and pinned memory."""

    baseline = TorchtuneOffload()


class TrlOffloadActivations(_OffloadActivations):
    """TRL's, with streams and pinned memory."""

    baseline = _TrlOffload()
