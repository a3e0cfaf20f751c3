"""Memory outside of torch's allocator, after the context, and after the first kernel of each library.

    python -m benchmarks.gpu_visit.memory_stages cuda        prints a JSON object; CUDA_MODULE_LOADING is LAZY or EAGER

What the driver counts as used of the card, without what it counted before this process began, and without what the
allocator reserves: no other process may take or free memory meanwhile.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu_visit.rows import NotRun, Rows, Values, Visit
from membench.backends.real import real_device
from membench.profiling.nvml import read_processes

LOADINGS = ("LAZY", "EAGER")
LIMIT_S = 25
"""Of a child process: loaded eagerly, torch's kernels take seconds."""


def run(visit: Visit, rows: Rows) -> None:
    for loading in LOADINGS:
        rows.measure(f"memory outside of the allocator: {loading}", partial(_in_child, visit, loading))


def _in_child(visit: Visit, loading: str) -> Values:
    if visit.backend != "cuda":
        raise NotRun("a context and libraries that take device memory are CUDA's")
    command = [sys.executable, "-m", "benchmarks.gpu_visit.memory_stages", visit.backend]
    environment = {**os.environ, "CUDA_MODULE_LOADING": loading}
    made = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if made.returncode:
        raise RuntimeError(made.stderr.strip().splitlines()[-1])
    stages: Values = {"stages": json.loads(made.stdout)}
    return stages


def stages(device: torch.device) -> dict[str, Callable[[], object]]:
    """Return what first uses each library, in order."""

    def half(*shape: int) -> torch.Tensor:
        return torch.ones(shape, device=device, dtype=torch.bfloat16)

    def single(*shape: int) -> torch.Tensor:
        return torch.ones(shape, device=device)

    def attention(kernel: SDPBackend) -> object:
        heads = half(1, 2, 64, 64)
        with sdpa_kernel(kernel):
            return scaled_dot_product_attention(heads, heads, heads)

    return {
        "context": lambda: single(1),
        "elementwise": lambda: single(64) + 1,
        "reduction": lambda: single(64).sum(),
        "cublas": lambda: single(64, 64) @ single(64, 64),
        "cublas, half precision": lambda: half(64, 64) @ half(64, 64),
        "cublaslt": lambda: torch.addmm(half(64), half(64, 64), half(64, 64)),
        "cudnn": lambda: nn.Conv2d(8, 8, 3, device=device)(single(1, 8, 16, 16)),
        "cudnn, half precision": lambda: nn.Conv2d(8, 8, 3, device=device, dtype=torch.bfloat16)(half(1, 8, 16, 16)),
        "cudnn, backward": lambda: nn.Conv2d(8, 8, 3, device=device)(single(1, 8, 16, 16)).sum().backward(),
        "batch norm": lambda: nn.BatchNorm2d(8, device=device)(single(2, 8, 4, 4)),
        "recurrent layer": lambda: nn.LSTM(8, 8, device=device)(single(2, 2, 8)),
        "flash attention": lambda: attention(SDPBackend.FLASH_ATTENTION),
        "efficient attention": lambda: attention(SDPBackend.EFFICIENT_ATTENTION),
        "cudnn attention": lambda: attention(SDPBackend.CUDNN_ATTENTION),
        "sort": lambda: single(64).sort(),
        "random numbers": lambda: torch.randn(64, device=device),
        "cusolver": lambda: torch.linalg.cholesky(torch.eye(8, device=device)),
        "cufft": lambda: torch.fft.fft(single(64)),
    }  # fmt: skip


def used_bytes() -> int:
    """Return what the driver counts as used of the first card, without a context of this process's own."""
    import pynvml

    pynvml.nvmlInit()
    used: int = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used
    return used


def measured(device: torch.device, before_bytes: int, used: Callable[[], int]) -> list[dict[str, Any]]:
    """Run the stages; return the bytes outside of the allocator after each."""
    found = []
    for name, use in stages(device).items():
        row: dict[str, Any] = {"stage": name}
        try:
            use()
        except RuntimeError as error:  # a kernel that this card or this torch does not have
            row["error"] = str(error).splitlines()[0]
        torch.accelerator.synchronize(device)
        reserved_bytes = torch.accelerator.memory_reserved(device)
        row |= {"outside_bytes": used() - before_bytes - reserved_bytes, "reserved_bytes": reserved_bytes}
        found.append(row)
    return found


def main(backend: str) -> None:
    before_bytes = used_bytes()
    device = real_device(backend)
    rows = measured(device, before_bytes, used_bytes)
    own = read_processes(device).process_bytes
    print(json.dumps([*rows, {"stage": "process, by the driver", "used_bytes": own.value, "reason": own.reason}]))


if __name__ == "__main__":
    main(sys.argv[1])
