"""Caltech-256 from tiny images in the layout in which it is distributed."""

from pathlib import Path

import pytest
import torch

from membench.core.errors import MissingDataset
from membench.data.caltech256 import caltech256
from tests.helpers.lab.image_files import write_image


def test_caltech256_without_clutter_and_strays(tmp_path: Path) -> None:
    directory = tmp_path / "256_ObjectCategories"
    for category, name in ((1, "001.ak47"), (2, "002.american-flag"), (257, "257.clutter")):
        for number in range(1, 7):
            write_image(directory / name / f"{category:03}_{number:04}.jpg", size=(20, 12))
    (directory / "002.american-flag" / "RENAME2").touch()
    write_image(directory / "001.ak47" / "greg" / "vision309" / "001_0001.jpg")
    found = caltech256(str(tmp_path), size_px=16)
    assert found.classes == 2
    assert found.training.labels.tolist() == [0] * 5 + [1] * 5
    assert found.test.labels.tolist() == [0, 1]
    assert found.test.batch(torch.tensor([0]))[0].shape == (1, *found.image_shape) == (1, 3, 16, 16)
    with pytest.raises(MissingDataset, match="Caltech-256 has no .*001_0001.jpg: download 256_ObjectCategories.tar"):
        caltech256(str(tmp_path / "elsewhere"), size_px=16)
