"""Codecs on the emulated GPU: the CPU's loops in place of Triton's kernels. The host waits for what they read."""

import sys
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from membench.codecs import cpu_mask, cpu_rows
from membench.core.torch_internals import tree_map_only


def _on_cpu(run: Any, *arguments: Any) -> Any:
    return run(*tree_map_only(Tensor, torch.ops.emulator.on_cpu, arguments))


def cpu_codecs() -> Any:
    """Return a context in which codecs take the CPU's loops on every device."""
    loops = {"cuda_mask": cpu_mask, "cuda_rows": cpu_rows}
    return patch.dict(
        sys.modules,
        {
            f"membench.codecs.{name}": SimpleNamespace(
                encode=partial(_on_cpu, module.encode), decode=partial(_on_cpu, module.decode)
            )
            for name, module in loops.items()
        },
    )
