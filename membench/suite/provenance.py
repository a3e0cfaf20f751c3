"""Where and with what a measured record was made. Simulated records have none: their bytes must not depend on it."""

import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "torchvision", "numpy", "hydra-core")


def provenance() -> dict[str, Any]:
    """Return commit, whether the tree was clean, versions, processor and time."""
    return {
        "commit": _git("rev-parse", "HEAD"),
        "clean": _git("status", "--porcelain") == "",
        "versions": {"python": platform.python_version()} | _versions(),
        "machine": f"{platform.system()} {platform.machine()}",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _versions() -> dict[str, str]:
    """Return the versions of those packages that are installed; a machine for measuring has not all."""
    found = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _git(*arguments: str) -> str | None:
    """Return what git says, or None outside a repository."""
    root = Path(__file__).parent
    try:
        done = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
