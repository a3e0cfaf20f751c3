"""Rows of a visit: one JSON object on each line, written as soon as it is measured, with its provenance.

A row with a result, or with a reason why it is not run, is not measured again; one that failed is.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from membench.backends.real import real_device
from membench.core.errors import one_line
from membench.sweep.results.provenance import device_facts, provenance

Values = Mapping[str, Any]

COMMIT_VARIABLE = "MEMBENCH_VISIT_COMMIT"
"""The commit of the files, where they were copied to the machine without their history."""


class NotRun(Exception):
    """The reason why a row cannot be measured on this device."""


@dataclass(frozen=True)
class Visit:
    """What all parts of a visit share.

    Attributes:
        folder: for the rows of all parts.
        backend: ``cuda``, ``cpu`` or ``emulated``.
        is_small: whether networks and tensors are the smallest, to try the scripts.
    """

    folder: Path
    backend: str
    is_small: bool

    @property
    def device(self) -> torch.device:
        """The device; a process that asks for it starts CUDA.

        Raises:
            MembenchError: the backend needs a GPU, and there is none.
        """
        return real_device(self.backend)

    def rows(self, part: str) -> "Rows":
        """Return the rows of a part."""
        return Rows(self.folder / f"{part}.jsonl", self.backend)


class Rows:
    """The rows of one part; several processes may write them.

    Args:
        path: the file, which need not exist.
        backend: names the device of the provenance.
    """

    def __init__(self, path: Path, backend: str) -> None:
        self.path = path
        self._backend = backend

    def read(self) -> list[dict[str, Any]]:
        """Return all rows; a line that a stop has cut off is left out."""
        return list(_objects(self.path.read_text())) if self.path.exists() else []

    def done(self) -> set[str]:
        """Return the names of rows that are not measured again."""
        return {row["row"] for row in self.read() if "error" not in row}

    def measure(self, name: str, measured: Callable[[], Values]) -> None:
        """Measure a row if it is not there, and write it, or the reason why there is none."""
        if name in self.done():
            return
        start_s = time.perf_counter()
        values: Values
        try:
            values = measured()
        except NotRun as reason:
            values = {"not_run": str(reason)}
        except Exception as error:  # a row that fails is a row, and the next one is measured
            values = {"error": f"{type(error).__name__}: {one_line(error)}"}
        self.write(name, {**values, "wall_s": round(time.perf_counter() - start_s, 3)})

    def write(self, name: str, values: Values) -> None:
        """Append a row in one call, so that rows of several processes do not mix."""
        row = {"row": name, **values, "provenance": origin(self._backend)}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = self.path.read_text() if self.path.exists() else ""
        with self.path.open("a") as file:
            file.write(("\n" if text and text[-1] != "\n" else "") + json.dumps(row) + "\n")


@cache
def origin(backend: str) -> dict[str, Any]:
    """Return the provenance of this process's rows."""
    stated = {"stated_commit": commit} if (commit := os.environ.get(COMMIT_VARIABLE)) else {}
    return {**provenance(), **device_facts(backend), **stated}


def _objects(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue
