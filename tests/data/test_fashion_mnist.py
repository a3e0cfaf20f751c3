"""Fashion-MNIST from tiny files in the layout in which Debian distributes it; the real one where it can be had."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from membench.core import configuration
from membench.core.errors import MembenchError, MissingDataset
from membench.data.fashion_mnist import FOLDER, fashion_mnist
from tests.helpers.lab.fashion_mnist import serve_with_apt, stand_in_for_apt, write_fashion_mnist


def test_reads_the_first_images_of_both_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fashion_mnist(tmp_path, monkeypatch)
    found = fashion_mnist(str(tmp_path), training_images=4, test_images=2)
    assert (len(found.training), len(found.test), found.classes) == (4, 2, 10)
    images, labels = found.training.batch(torch.tensor([3, 1]))
    assert images.shape == (2, *found.image_shape) == (2, 1, 28, 28)
    assert labels.tolist() == [3, 1]
    assert (images[0] * 255).unique().tolist() == [3]


def test_a_directory_without_the_files_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        MissingDataset,
        match=r"Fashion-MNIST has no .*train-images-idx3-ubyte\.gz: download the package dataset-fashion-mnist",
    ):
        fashion_mnist(str(tmp_path))


@pytest.mark.parametrize("damage", [lambda old: b"", lambda old: old[:-9], lambda old: b"<html>", lambda old: old * 2])
def test_a_file_with_another_content_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]
) -> None:
    write_fashion_mnist(tmp_path, monkeypatch)
    path = tmp_path / FOLDER / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(MembenchError, match=r"t10k-images-idx3-ubyte\.gz is not the published file, by its SHA-256"):
        fashion_mnist(str(tmp_path))


@pytest.mark.parametrize(
    ("counts", "most"),
    [({"training_images": 60_001}, 60_000), ({"training_images": 0}, 60_000), ({"test_images": -1}, 10_000)],
)
def test_a_number_of_images_that_there_is_not_is_refused(counts: dict[str, int], most: int) -> None:
    with pytest.raises(MembenchError, match=f"and Fashion-MNIST has {most}; choose a number from 1 to {most}"):
        fashion_mnist("nowhere", **counts)


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="packages are unpacked by dpkg-deb, which is not here")
def test_the_package_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_with_apt(tmp_path, monkeypatch)
    assert fashion_mnist().training.labels.tolist() == [0, 1, 2, 3, 4]
    cached = sorted(path.name for path in (tmp_path / "cache" / FOLDER).iterdir())
    assert len(cached) == 4 and all(name.endswith("-ubyte.gz") for name in cached)
    (tmp_path / "bin" / "apt-get").write_text("#!/bin/sh\nexit 1\n")
    assert fashion_mnist().test.labels.tolist() == [0, 1, 2]


def test_a_package_that_cannot_be_had_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_apt(tmp_path, "exit 100", monkeypatch)
    with pytest.raises(MissingDataset, match=r"cache, or name the directory that holds it with data\.root=DIRECTORY"):
        fashion_mnist()


@pytest.mark.slow
def test_the_published_images() -> None:
    try:
        found = configuration.load("data", "fashion_mnist")
    except MissingDataset as missing:
        pytest.skip(str(missing))
    assert found.training.labels.bincount().tolist() == [6000] * 10
    assert found.test.labels.bincount().tolist() == [1000] * 10
    assert found.training.images.shape == (60_000, 1, 28, 28)
    assert found.training.labels[:5].tolist() == [9, 0, 0, 3, 0]  # an ankle boot, two T-shirts, a dress, a T-shirt
