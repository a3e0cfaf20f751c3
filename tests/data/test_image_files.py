"""Data sets of image files, from tiny ones in the layout in which they are distributed."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from membench.core.errors import MembenchError, MissingDataset
from membench.data.caltech256 import caltech256
from membench.data.coil100 import coil100
from membench.data.files import ImageFiles
from membench.data.imagenet import imagenet


def write(path: Path, size: tuple[int, int] = (8, 8), color: tuple[int, int, int] = (0, 0, 0)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)
    return path


def test_images_become_squares_of_one_size_in_three_channels(tmp_path: Path) -> None:
    wide = Image.new("RGB", (30, 10), (0, 0, 0))
    wide.paste((255, 0, 0), (10, 0, 20, 10))  # red in the middle
    wide.save(tmp_path / "wide.png")
    Image.new("L", (10, 30), 7).save(tmp_path / "grey.png")
    files = ImageFiles((tmp_path / "wide.png", tmp_path / "grey.png"), 10)
    images = files[torch.tensor([1, 0])]
    assert images.shape == (2, 3, 10, 10)
    assert images.dtype == torch.uint8
    assert (images[0] == 7).all()
    assert (images[1, 0] == 255).all() and (images[1, 1:] == 0).all()


def test_coil100_by_object_and_angle(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        for angle in range(0, 50, 5):
            write(tmp_path / "coil-100" / f"obj{number}__{angle}.png", color=(number, angle, 0))
    (tmp_path / "coil-100" / "convertGroupppm2png.pl").touch()  # is in the archive
    found = coil100(str(tmp_path))
    assert found.classes == 10
    assert len(found.training) == 24
    assert found.test.labels.tolist() == [0, 0, 1, 1, 9, 9]
    images, _ = found.test.batch(torch.arange(6))
    assert images.shape == (6, 3, 128, 128)
    assert (images[:, 1, 0, 0] * 255).round().tolist() == [20, 45] * 3  # the fifth and the tenth side
    with pytest.raises(MissingDataset, match="COIL-100 has no .*obj1__0.png: download coil-100.zip from"):
        coil100(str(tmp_path / "elsewhere"))


def test_caltech256_without_clutter_and_strays(tmp_path: Path) -> None:
    directory = tmp_path / "256_ObjectCategories"
    for category, name in ((1, "001.ak47"), (2, "002.american-flag"), (257, "257.clutter")):
        for number in range(1, 7):
            write(directory / name / f"{category:03}_{number:04}.jpg", size=(20, 12))
    (directory / "002.american-flag" / "RENAME2").touch()
    write(directory / "001.ak47" / "greg" / "vision309" / "001_0001.jpg")
    found = caltech256(str(tmp_path), size_px=16)
    assert found.classes == 2
    assert found.training.labels.tolist() == [0] * 5 + [1] * 5
    assert found.test.labels.tolist() == [0, 1]
    assert found.test.batch(torch.tensor([0]))[0].shape == (1, *found.image_shape) == (1, 3, 16, 16)
    with pytest.raises(
        MissingDataset, match="Caltech-256 has no .*001_0001.jpg: download 256_ObjectCategories.tar"
    ):
        caltech256(str(tmp_path / "elsewhere"), size_px=16)


def test_imagenet_by_folder(tmp_path: Path) -> None:
    for name in ("n01440764", "n01443537"):
        for number in range(3):
            write(tmp_path / "train" / name / f"{name}_{number}.JPEG")
        write(tmp_path / "val" / name / f"ILSVRC2012_val_{name[-4:]}.JPEG")
    found = imagenet(str(tmp_path), size_px=8)
    assert found.classes == 2
    assert found.training.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.test.labels.tolist() == [0, 1]
    assert found.training.batch(torch.tensor([5, 0]))[1].tolist() == [1, 0]


def test_imagenet_in_a_heap_or_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingDataset, match="ImageNet has no .*train: download .*an account is needed"):
        imagenet(str(tmp_path), size_px=8)
    write(tmp_path / "train" / "n01440764" / "n01440764_10026.JPEG")
    write(tmp_path / "val" / "ILSVRC2012_val_00000293.JPEG")
    with pytest.raises(MembenchError, match="have 1 and 0 folders of classes .* WordNet name"):
        imagenet(str(tmp_path), size_px=8)
