"""Fashion-MNIST in tiny files, in the layout of Debian's package, and a stand-in for apt-get that fetches it."""

import gzip
import hashlib
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from membench.data import fashion_mnist

CONTROL = "Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: tiny\n"


def write_fashion_mnist(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write five training and three test images of the grey level and class of their position; their hashes count."""
    directory = root / fashion_mnist.FOLDER
    directory.mkdir(parents=True)
    for prefix, count in (("train", 5), ("t10k", 3)):
        levels = np.arange(count, dtype=np.uint8)
        for name, values in (
            ("images-idx3", np.broadcast_to(levels[:, None, None], (count, 28, 28))),
            ("labels-idx1", levels),
        ):
            content = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()
            file = f"{prefix}-{name}-ubyte"
            (directory / f"{file}.gz").write_bytes(gzip.compress(content))
            monkeypatch.setitem(fashion_mnist.SHA256, file, hashlib.sha256(content).hexdigest())


def serve_with_apt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``apt-get`` copy a package of such files, and nothing of them be installed or cached."""
    package = folder / "package"
    write_fashion_mnist(package / fashion_mnist.IN_PACKAGE, monkeypatch)
    (package / "DEBIAN").mkdir()
    (package / "DEBIAN" / "control").write_text(CONTROL.format(name=fashion_mnist.PACKAGE))
    built = folder / f"{fashion_mnist.PACKAGE}_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", package, built], check=True, capture_output=True)
    stand_in_for_apt(folder, f'[ "$1" = download ] && cp {built} .', monkeypatch)


def stand_in_for_apt(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``apt-get`` run a script; the cache is empty and nothing is installed."""
    commands = folder / "bin"
    commands.mkdir()
    (commands / "apt-get").write_text(f"#!/bin/sh\n{script}\n")
    (commands / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(commands), prepend=":")
    monkeypatch.setenv("MEMBENCH_CACHE", str(folder / "cache"))
    monkeypatch.setattr(fashion_mnist, "INSTALLED", folder / "nothing")
