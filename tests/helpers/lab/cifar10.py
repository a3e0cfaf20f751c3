"""CIFAR-10 in tiny batches, written as Python 2 wrote the distributed ones: protocol 2, strings of bytes."""

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np


class Python2Pickler(pickle._Pickler):  # type: ignore[name-defined,misc]
    """Writes bytes as Python 2 writes a string."""

    dispatch = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]  # noqa: RUF012

    def save_string(self, text: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(text)) + text)
        self.memoize(text)

    dispatch[bytes] = save_string


def write_batch(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        Python2Pickler(file, protocol=2).dump(content)


def write_cifar10(root: Path) -> None:
    """Write six batches of two images."""
    directory = root / "cifar-10-batches-py"
    for number, name in enumerate([*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]):
        pixels = np.full((2, 3072), number, dtype=np.uint8)
        pixels[1, :1024] = 255  # the second image is red
        names = [b"a.png", b"b.png"]
        write_batch(directory / name, {b"data": pixels, b"labels": [number, 9], b"filenames": names})
