"""Trust is read from the committed tables of the validation, of the rows most like the step."""

import shutil
from pathlib import Path

import pytest

from membench.advice.device.trust import Trust, trusts
from membench.core.configuration import VALIDATED
from membench.core.tables import read_csv

SUMMARY = read_csv(VALIDATED / "summary.csv", columns=("dataset", "part", "quantity", "median", "p90"))


def summarized(dataset: str, part: str) -> dict[str, str]:
    return next(row for row in SUMMARY if (row["dataset"], row["part"]) == (dataset, part))


def of_table(folder: Path, name: str, network: str, device: str) -> tuple[Trust, ...]:
    shutil.copy(VALIDATED / f"{name}.csv", folder)
    return trusts(network, device, folder)


@pytest.mark.parametrize(
    ("table", "network", "device", "part"),
    [
        ("timm_nchw", "resnet50", "rtx3090", "family: resnet"),
        ("timm_nchw", "VisionTransformer", "rtx3090", "judged"),  # of the device, of which there are all
        ("neusight", "gpt2", "mi300x", "family: gpt"),
        ("schedtune", "lenet", "t4", "device: t4"),
    ],
)
def test_its_errors_are_those_of_the_summary(table: str, network: str, device: str, part: str, tmp_path: Path) -> None:
    (found,) = of_table(tmp_path, table, network, device)
    expected = summarized(table, part)
    assert found.errors.rows == int(expected["rows"])
    assert found.errors.median == pytest.approx(float(expected["median"]), abs=1e-4)
    assert found.errors.p90 == pytest.approx(float(expected["p90"]), abs=1e-4)
    if expected["fits_right"]:
        assert found.fits_right == pytest.approx(float(expected["fits_right"]), abs=1e-4)
    assert f"{found.errors.median:.1%}" in found.sentence() and table in found.sentence()


def test_without_a_like_row_there_is_no_number(tmp_path: Path) -> None:
    assert of_table(tmp_path, "xmem", "lenet", "mi300x") == ()
    assert trusts("resnet50", "rtx3090", tmp_path / "missing") == ()
