"""Convolutions with almost no workspace: restriction of a process to some of cuDNN's engines.

PyTorch tries the engines that cuDNN's heuristics name, the fastest first, and skips the engines listed in the file
named by `CUDNN_ERRATA_JSON_FILE` (the errata filter of NVIDIA's cudnn-frontend, documented in torch's "CUDA Environment
Variables"). Engines 0 and 1 of each operation are cuDNN's oldest algorithms: implicit GEMM, and implicit GEMM with
precomputed indices. Asked for an H200, the heuristics of cuDNN 9.19 and 9.26 name one of the two for every convolution
of ResNet-50, VGG-16 and AlexNet, with at most 18 KiB; of the fastest, one takes 1.6 GB. ``CUDNN_CONV_WSCAP_DBG``, which
torch's page lists as a limit, changed none of these answers.
"""

import json
from pathlib import Path

from membench.core.files import cache_directory, write_whole
from membench.profiling.cache import ENGINES_VARIABLE

WORKSPACE_BYTES = 64 * 1024
"""The most that a convolution without workspace may take."""
_FIRST_REFUSED, _END = 2, 256  # cuDNN 9.26 numbers its engines to below 100
_OPERATIONS = ("ConvFwd", "ConvBwdData", "ConvBwdFilter")


def without_workspace(directory: Path | None = None) -> dict[str, str]:
    """Write the file and return the environment variable that a process needs before its first convolution.

    Args:
        directory: the file's directory; by default that of measured costs.
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
