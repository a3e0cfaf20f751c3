"""Convolutions that need next to no workspace: which of cuDNN's engines PyTorch takes in a process.

PyTorch tries the engines that cuDNN's heuristics name, the fastest first, and passes over those that a file names to
which `VARIABLE` points (the errata filter of NVIDIA's cudnn-frontend, documented in torch's "CUDA Environment
Variables"). Engines 0 and 1 of each operation are cuDNN's oldest algorithms: implicit GEMM, and implicit GEMM with
precomputed indices. Asked for an H200, the heuristics of cuDNN 9.19 and 9.26 name one of the two for every convolution of
ResNet-50, VGG-16 and AlexNet, with at most 18 KiB; of the fastest, one takes 1.6 GB. ``CUDNN_CONV_WSCAP_DBG``, which
torch's page lists as a limit, changed none of these answers.
"""

import json
from pathlib import Path

from membench.core.files import write_whole
from membench.profiling.cache import ENGINES_VARIABLE, cache_directory

WORKSPACE_BYTES = 64 * 1024
"""What a convolution may take at most to count as one without workspace."""
_FIRST_REFUSED, _END = 2, 256  # cuDNN 9.26 numbers its engines to below 100
_OPERATIONS = ("ConvFwd", "ConvBwdData", "ConvBwdFilter")


def without_workspace(directory: Path | None = None) -> dict[str, str]:
    """Write the file, and return what a process needs in its environment before it first computes a convolution.

    Args:
        directory: where the file lies; by default the one of measured costs.
    """
    path = (directory or cache_directory()) / "cudnn_without_workspace.json"
    rules = [
        {"rule_id": f"{operation}_{engine}", "operation": operation, "engine": engine}
        for operation in _OPERATIONS
        for engine in range(_FIRST_REFUSED, _END)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({"version": 1, "rules": rules}) + "\n")
    return {ENGINES_VARIABLE: str(path)}
