"""Provenance of measured records: machine, commit, versions.

Simulated records have none: their bytes must not depend on it.
"""

import json
import os
import platform
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from membench.core.configuration import IS_INSTALLED
from membench.core.errors import MembenchError
from membench.profiling.nvml import driver_version

_PACKAGES = ("membench", "torch", "torchvision", "numpy", "hydra-core")


def provenance() -> dict[str, Any]:
    """Return commit, whether the tree was clean, versions, processor and time.

    Changes under ``results`` do not count: runs write there and read nothing that could change a number.
    """
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {
        "commit": git("rev-parse", "HEAD"),
        "clean": git("status", "--porcelain", "--", ":/", ":(exclude,top)results") == "",
        "versions": versions,
        "machine": f"{platform.system()} {platform.machine()}",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def device_facts(backend: str) -> dict[str, Any]:
    """Return name, memory and software of the device that a backend runs on.

    Raises:
        MembenchError: the backend needs a GPU, and there is none.
    """
    import torch

    from membench.backends.real import real_device

    device = real_device(backend)
    if device.type == "cpu":
        return {"device": "cpu"}
    if device.type != "cuda":
        return {"device": device.type, "device_memory_bytes": torch.accelerator.get_memory_info(device)[1]}
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": properties.name,
        "device_memory_bytes": properties.total_memory,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "allocator": os.environ.get("PYTORCH_ALLOC_CONF", ""),
    }


def device_facts_from_outside(backend: str) -> dict[str, Any]:
    """Return `device_facts` from another process, so that this one does not keep a context on the GPU.

    Raises:
        MembenchError: see `device_facts`.
    """
    command = [sys.executable, "-m", __spec__.name, backend]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise MembenchError(finished.stderr.strip())
    return json.loads(finished.stdout)


def git(*arguments: str) -> str | None:
    """Return what git prints about the checkout that this code lies in, or None outside one.

    An installed package may lie in an environment within a repository of its user's, which is not its source.
    """
    if IS_INSTALLED:
        return None
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


if __name__ == "__main__":
    try:
        print(json.dumps(device_facts(sys.argv[1])))
    except MembenchError as error:
        sys.exit(str(error))
