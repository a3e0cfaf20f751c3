"""CIFAR-10 from tiny batches, written as Python 2 wrote the distributed ones: protocol 2, strings of bytes."""

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from membench.core import configuration
from membench.core.errors import MembenchError, MissingDataset
from membench.data.cifar10 import cifar10


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


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_cifar10(tmp_path)
    return tmp_path


def test_reads_all_batches_in_order(root: Path) -> None:
    found = cifar10(str(root))
    assert found.training.labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert found.test.labels.tolist() == [5, 9]
    assert found.image_shape == (3, 32, 32)
    images, _ = found.test.batch(torch.tensor([1]))
    assert images.shape == (1, 3, 32, 32)
    assert (images[0, 0] == 1).all()
    assert torch.allclose(images[0, 1:], torch.tensor(5 / 255))


def test_missing_files_are_named_with_what_to_do(tmp_path: Path, root: Path) -> None:
    with pytest.raises(
        MissingDataset, match=r"no elsewhere/cifar-10-batches-py/data_batch_1: download cifar-10-.* from"
    ):
        cifar10("elsewhere")
    (root / "cifar-10-batches-py" / "test_batch").unlink()
    with pytest.raises(
        MissingDataset, match=r"unpack it in .*, or name .* with data.root=DIRECTORY"
    ) as refused:
        cifar10(str(root))
    assert refused.value.missing.name == "test_batch"


@pytest.mark.parametrize("content", [b"", b"<html>", pickle.dumps({b"data": os.getcwd})])
def test_what_is_no_batch_is_refused_before_anything_in_it_runs(root: Path, content: bytes) -> None:
    (root / "cifar-10-batches-py" / "data_batch_2").write_bytes(content)
    with pytest.raises(MembenchError, match="data_batch_2 is not a batch of CIFAR-10"):
        cifar10(str(root))


def test_the_configuration_names_a_root() -> None:
    assert configuration.read("data", "cifar10") == {
        "_target_": "membench.data.cifar10.cifar10",
        "root": "data",
    }
