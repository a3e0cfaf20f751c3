"""Measured costs of operators on disk: one JSON file per device, driver, torch and settings."""

import hashlib
import json
import os
from collections.abc import Hashable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from membench.core.errors import MembenchError
from membench.core.files import cache_directory, write_whole
from membench.core.graph.call import Output
from membench.core.hardware.device import file_name
from membench.profiling.link import Link
from membench.profiling.nvml import driver_version
from membench.profiling.operators import OperatorCost

ENGINES_VARIABLE = "CUDNN_ERRATA_JSON_FILE"
"""Variable with the path of a file of cuDNN engines that PyTorch skips; read once per process."""
PRODUCT_WORKSPACE_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
"""Variable with cuBLAS's workspace for matrix products, as ``:KiB:count``; read once per process."""


@dataclass
class CostCache:
    """Measured costs, as read from a file and written back to it.

    Attributes:
        library_bytes: device memory that libraries keep once they have run (cuBLAS's workspace).
        tasks: costs by the `repr` of a task's key.
    """

    path: Path
    identity: dict[str, Any]
    library_bytes: int = 0
    link: Link | None = None
    tasks: dict[str, OperatorCost] = field(default_factory=dict)

    def find(self, key: Hashable) -> OperatorCost | None:
        return self.tasks.get(repr(key))

    def add(self, measured: dict[Hashable, OperatorCost]) -> None:
        self.tasks.update({repr(key): cost for key, cost in measured.items()})

    def save(self) -> None:
        content = {name: value for name, value in asdict(self).items() if name != "path"}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, json.dumps(content, indent=0, default=str) + "\n")  # a dtype by its name


def load_cache(device: torch.device, directory: Path | None = None) -> CostCache:
    """Return the cache for a GPU under this driver, this torch and these settings; empty if there is none yet.

    Raises:
        MembenchError: the file is damaged.
    """
    identity = _identity(device)
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    path = (directory or cache_directory()) / f"{file_name(identity['device'])}-{digest}.json"
    if not path.exists():
        return CostCache(path, identity)
    try:
        content = json.loads(path.read_text())
        return CostCache(
            path,
            identity,
            int(content["library_bytes"]),
            Link(**content["link"]) if content["link"] else None,
            {key: _operator_cost(cost) for key, cost in content["tasks"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MembenchError(f"{path} is damaged ({error}); delete it to measure again") from error


def _operator_cost(content: dict[str, Any]) -> OperatorCost:
    return OperatorCost(**{**content, "outputs": tuple(each and _output(**each) for each in content["outputs"])})


def _output(dtype: str, shape: list[int], stride: list[int], offset: int, size_bytes: int) -> Output:
    named = getattr(torch, dtype.removeprefix("torch."))
    return Output(named, tuple(shape), tuple(stride), offset, size_bytes)


def _identity(device: torch.device) -> dict[str, Any]:
    """Return everything that determines costs except an operator and its shapes."""
    return {
        "contents": "memory, seconds and outputs of calls, both kinds of copies",
        "device": torch.cuda.get_device_name(device),
        "driver": driver_version(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic,
        "tf32": [torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32],
        "refused_engines": os.environ.get(ENGINES_VARIABLE),
        "product_workspace": os.environ.get(PRODUCT_WORKSPACE_VARIABLE),
        "allocator": os.environ.get("PYTORCH_ALLOC_CONF"),
    }
