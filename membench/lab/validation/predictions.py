"""Predictions of published rows, made in processes of their own and kept on disk.

    rows -> groups with one step to capture -> processes -> a file for each row, named by what decides the prediction

A row whose file is current is not predicted again, so that a stopped validation continues where it stopped.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.files import write_whole
from membench.core.libraries.messages import silence_libraries
from membench.core.terminal import progress_bar
from membench.lab.validation.rows import Row
from membench.sweep.results.sources import sources_hash

_DECIDES = {"_target_": "membench.lab.validation.predicting.predict_rows"}
"""The function whose sources, with all that they import, decide predictions."""
_PACKAGES = ("timm", "torchvision", "transformers")


@dataclass(frozen=True)
class RowPrediction:
    """The simulated counterpart of a published row.

    Attributes:
        values: by quantity, of `membench.lab.validation.dataset.QUANTITIES`; ``roofline_time_s`` in addition. Empty if
            the row cannot be predicted.
        fits: whether the device has the memory for the row's batch.
        next_fits: whether it has the memory for the next larger batch that was tried; None: none was.
        reason: why there is no prediction; empty if there is one.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    fits: bool | None = None
    next_fits: bool | None = None
    reason: str = ""


Predict = Callable[[Sequence[Row]], list[RowPrediction]]


class Predictions:
    """The predictions in a directory; a missing one is made.

    Args:
        directory: need not exist.
        predict: predicts rows with one step.
    """

    def __init__(self, directory: Path, predict: Predict) -> None:
        self._directory = directory
        self._predict = predict
        self._shared = [sources_hash(_DECIDES), configuration.read("framework", "pytorch"), _versions()]

    def of(self, rows: Iterable[Row], *, workers: int, again: bool = False) -> list[RowPrediction]:
        """Return the predictions of rows in their order, and show progress.

        Args:
            workers: processes at a time.
            again: predict rows that have a current prediction too.

        Raises:
            MembenchError: a process died, for example because the machine's memory is used up; finished rows are kept.
        """
        rows = list(rows)
        paths = [self._path(row) for row in rows]
        missing: defaultdict[str, dict[Path, Row]] = defaultdict(dict)
        for row, path in zip(rows, paths, strict=True):
            if again or not path.exists():
                missing[json.dumps([row.step, row.timed, *_further(row)])][path] = row
        self._directory.mkdir(parents=True, exist_ok=True)
        if missing:
            self._make(list(missing.values()), workers)
        return [_read(path) for path in paths]

    def _make(self, groups: Sequence[Mapping[Path, Row]], workers: int) -> None:
        # spawned: a fork of a process that has used torch can hang
        with (
            ProcessPoolExecutor(workers, get_context("spawn"), _use_one_thread) as pool,
            progress_bar("rows", "row", sum(map(len, groups))) as bar,
        ):
            running = {pool.submit(self._predict, list(group.values())): group for group in groups}
            try:
                for done in as_completed(running):
                    for path, made in zip(running[done], done.result(), strict=True):
                        write_whole(path, json.dumps(asdict(made), indent=1) + "\n")
                        bar.update()
            except BaseException as error:
                pool.shutdown(wait=False, cancel_futures=True)
                if isinstance(error, RuntimeError):  # a broken pool's
                    raise MembenchError(
                        f"a process died ({error}); finished rows are kept, and the same command continues"
                    ) from error
                raise

    def _path(self, row: Row) -> Path:
        device = configuration.read("device", row.device)
        of_row = row.step, row.timed, row.around_s, *_further(row)
        machine = row.machine and configuration.read("machine", row.machine["name"])
        decides = [*self._shared, *of_row, device, machine]
        digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]
        return self._directory / f"{digest}.json"


def _further(row: Row) -> tuple[Any, ...]:
    """Return what decides a prediction, in addition to the steps, for all devices."""
    return row.next_batch_size, row.reason, row.micro_batches, row.sizes, row.machine


def _use_one_thread() -> None:
    silence_libraries()
    import torch

    torch.set_num_threads(1)


def _versions() -> dict[str, str]:
    return {package: version(package) for package in _PACKAGES}


def _read(path: Path) -> RowPrediction:
    values: dict[str, Any] = json.loads(path.read_text())
    return RowPrediction(**values)
