"""Image files as tensors."""

from pathlib import Path

import torch
from PIL import Image

from membench.data.files import ImageFiles


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
