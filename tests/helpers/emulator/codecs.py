"""Codecs on the emulated GPU: the CPU's loops in place of Triton's kernels. The host waits for what they read."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from membench.codecs import cpu_mask, cpu_rows
from membench.core.libraries.torch_internals import tree_map_only


def _on_cpu(run: Any, *arguments: Any) -> Any:
    return run(*tree_map_only(Tensor, torch.ops.emulator.on_cpu, arguments))


@contextmanager
def cpu_codecs() -> Iterator[None]:
    """Let codecs take the CPU's loops on every device."""
    loops = {"cuda_mask": cpu_mask, "cuda_rows": cpu_rows}
    standing_in: dict[str, Any] = {
        f"membench.codecs.{name}": SimpleNamespace(
            encode=partial(_on_cpu, module.encode), decode=partial(_on_cpu, module.decode)
        )
        for name, module in loops.items()
    }
    sys.modules.update(standing_in)
    try:
        yield
    finally:
        for name in standing_in:
            sys.modules.pop(name, None)
