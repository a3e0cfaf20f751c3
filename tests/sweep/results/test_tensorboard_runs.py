"""A sweep in TensorBoard's files: pictures, counts and constants of the sweep, words and numbers of its cells."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from membench.core.errors import MembenchError
from membench.sweep.results.tracked import CELLS, Sweep, Tracking, cell_rows
from membench.sweep.results.tracking import check_tracking, log_sweep, where
from tests.helpers.sweep.cells import small_cell
from tests.helpers.sweep.jobs import record_of


def test_without_tensorboard_a_run_ends_before_any_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(
        MembenchError, match=r"^tracking=tensorboard needs tensorboard: pip install 'membench\[tensorboard\]'$"
    ):
        check_tracking(Tracking("tensorboard", "membench", "", True))


def test_a_sweep_has_its_pictures_and_each_cell_its_words_and_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    picture = tmp_path / "figure9.png"
    plt.imsave(picture, [[0.0, 1.0]])
    cell = small_cell()
    record = record_of(cell, peak_memory_bytes=1.0, images_per_s=10.0)
    sweep = Sweep(
        name="a sweep",
        group="sweeps/7",
        tags=[],
        configuration={"paper": "layrub"},
        summary={"agree": 7},
        tables={CELLS: cell_rows([(cell, record)])},
        files={},
        records=[record],
        pictures={"figure9": picture},
    )
    tracking = Tracking("tensorboard", "membench", str(tmp_path), True)
    check_tracking(tracking)
    folder = log_sweep(tracking, sweep)
    assert folder == tmp_path / "tensorboard" / "sweeps-7"
    assert where(tracking, sweep, folder).endswith(f"tensorboard --logdir {folder}")
    report, of_cell = (EventAccumulator(str(each)).Reload() for each in (folder, folder / "0"))
    assert report.Tags()["images"] == ["figures/figure9"]
    assert report.Scalars("summary/agree")[0].value == 7
    [text] = report.Tensors("configuration/text_summary")
    assert b"arithmetic_ops_per_s" in text.tensor_proto.string_val[0]
    assert set(of_cell.Tags()["scalars"]) == {"peak_memory_bytes", "images_per_s"}
    assert of_cell.Scalars("images_per_s")[0].value == 10.0
