"""ImageNet from tiny images in the layout in which it is distributed."""

from pathlib import Path

import pytest
import torch

from membench.core.errors import MembenchError, MissingDataset
from membench.data.imagenet import imagenet
from tests.helpers.lab.image_files import write_image


def test_imagenet_by_folder(tmp_path: Path) -> None:
    for name in ("n01440764", "n01443537"):
        for number in range(3):
            write_image(tmp_path / "train" / name / f"{name}_{number}.JPEG")
        write_image(tmp_path / "val" / name / f"ILSVRC2012_val_{name[-4:]}.JPEG")
    found = imagenet(str(tmp_path), size_px=8)
    assert found.classes == 2
    assert found.training.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.test.labels.tolist() == [0, 1]
    assert found.training.batch(torch.tensor([5, 0]))[1].tolist() == [1, 0]


def test_imagenet_in_a_heap_or_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingDataset, match="ImageNet has no .*train: download .*an account is needed"):
        imagenet(str(tmp_path), size_px=8)
    write_image(tmp_path / "train" / "n01440764" / "n01440764_10026.JPEG")
    write_image(tmp_path / "val" / "ILSVRC2012_val_00000293.JPEG")
    with pytest.raises(MembenchError, match="have 1 and 0 folders of classes .* WordNet name"):
        imagenet(str(tmp_path), size_px=8)
