"""Steps with a limit of memory: `python -m tests.helpers.steps.limited STRATEGY SHARE...` prints which shares suffice.

A share is of the predicted peak. Memory of this size is all that the step can have: the system limits the process's
address space to it, in addition to what the process has before the step. ``plain`` is plain PyTorch, whose peak
membench predicts under the strategy ``pytorch``. Blocks are of 8 MB, each in memory of its own (`ENVIRONMENT`).
"""

import ctypes
import json
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import membench

ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
"""Of the process, without which the C library keeps freed memory, and threads have memory of their own."""
PLAIN = "plain"
_LAYERS, _WIDTH, _ROWS = 12, 256, 8192
_SLACK_BYTES = 1 << 20
"""For pages that blocks fill in part, and for Python's objects."""


def _step(strategy: str, module: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Callable[[], object], int]:
    """Return a step that leaves no gradients, and its predicted peak in bytes."""
    loss = nn.functional.mse_loss
    compiled = membench.compile(module, loss, batch, strategy="pytorch" if strategy == PLAIN else strategy)

    def run() -> None:
        if strategy == PLAIN:
            loss(module(batch[0]), batch[1]).backward()
        else:
            compiled(*batch)

    return run, compiled.predicted_peak_bytes


def _suffices(run: Callable[[], object], module: nn.Module, limit_bytes: int) -> bool:
    """Return whether a step runs where the process can have so much memory in addition."""
    ctypes.CDLL(None).malloc_trim(0)  # what earlier work has freed is not the step's to use
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit_bytes += pages * resource.getpagesize() + _SLACK_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, resource.RLIM_INFINITY))
    try:
        run()
    except (MemoryError, RuntimeError) as error:
        if "memory" not in str(error):
            raise
        return False
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        module.zero_grad(set_to_none=True)
    return True


def main(strategy: str, shares: Sequence[float]) -> None:
    """Print for each share whether the step runs in that part of its predicted peak."""
    torch.manual_seed(0)
    module = nn.Sequential(*(part for _ in range(_LAYERS) for part in (nn.Linear(_WIDTH, _WIDTH), nn.Tanh())))
    batch = torch.randn(_ROWS, _WIDTH), torch.randn(_ROWS, _WIDTH)
    run, peak_bytes = _step(strategy, module, batch)
    held_bytes = sum(each.untyped_storage().nbytes() for each in (*module.parameters(), *batch))
    for _ in range(2):  # without a limit: libraries keep what they allocate first, and a second step compiles its runs
        run()
        module.zero_grad(set_to_none=True)
    print(json.dumps([_suffices(run, module, int(share * peak_bytes) - held_bytes) for share in shares]))


if __name__ == "__main__":
    main(sys.argv[1], [float(share) for share in sys.argv[2:]])
