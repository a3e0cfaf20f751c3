"""Image files made up for the tests of data sets."""

from pathlib import Path

from PIL import Image


def write_image(path: Path, size: tuple[int, int] = (8, 8), color: tuple[int, int, int] = (0, 0, 0)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path)
    return path
