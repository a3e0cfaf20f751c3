"""COIL-100 from tiny images in the layout in which it is distributed."""

from pathlib import Path

import pytest
import torch

from membench.core.errors import MissingDataset
from membench.data.coil100 import coil100
from tests.helpers.lab.image_files import write_image


def test_coil100_by_object_and_angle(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        for angle in range(0, 50, 5):
            write_image(tmp_path / "coil-100" / f"obj{number}__{angle}.png", color=(number, angle, 0))
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
