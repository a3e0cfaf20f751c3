"""CIFAR-10 from tiny batches, written as Python 2 wrote the distributed ones: protocol 2, strings of bytes."""

import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from membench.core import configuration
from membench.core.errors import MembenchError, MissingDataset
from membench.data.cifar10 import cifar10
from tests.helpers.lab.cifar10 import write_cifar10


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
    with pytest.raises(MissingDataset, match=r"unpack it in .*, or name .* with data.root=DIRECTORY") as refused:
        cifar10(str(root))
    assert refused.value.missing.name == "test_batch"


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("made",)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>",
        pickle.dumps({b"data": os.getcwd}),
        pickle.dumps(Hostile()),
        pickle.dumps({b"labels": [0]}),
        pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 10]}, protocol=4),
        b"cnumpy\nsave\n(S'made'\ntR.",
    ],
)
def test_a_file_that_is_not_a_batch_is_refused_before_anything_in_it_runs(
    root: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    (root / "cifar-10-batches-py" / "data_batch_2").write_bytes(content)
    with pytest.raises(MembenchError, match="data_batch_2 is not a batch of CIFAR-10"):
        cifar10(str(root))
    assert [path.name for path in root.iterdir()] == ["cifar-10-batches-py"]


@settings(deadline=None)  # a damaged length may ask for much memory
@given(changes=st.dictionaries(st.integers(0, 600), st.integers(0, 255), min_size=1, max_size=4))
def test_a_damaged_batch_is_read_or_refused(changes: dict[int, int], tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("damaged")
    write_cifar10(root)
    path = root / "cifar-10-batches-py" / "data_batch_1"
    content = bytearray(path.read_bytes())
    for position, value in changes.items():
        content[position if position < 300 else position - 600] = value  # not of the pixels in between
    path.write_bytes(content)
    with suppress(MembenchError):  # and no other error
        found = cifar10(str(root)).training
        assert len(found.labels) == 10 and set(found.labels.tolist()) <= set(range(10))


def test_the_configuration_names_a_root() -> None:
    assert configuration.read("data", "cifar10") == {"_target_": "membench.data.cifar10.cifar10", "root": "data"}
