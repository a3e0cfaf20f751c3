"""Run one part in this process: `python -m benchmarks.gpu_visit.part b FOLDER BACKEND [--small]`.

`benchmarks.gpu_visit` starts it.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from benchmarks.gpu_visit.rows import Visit


@dataclass(frozen=True)
class Part:
    """A part of a visit.

    Attributes:
        limit_s: after which it is ended; it includes the start of its processes.
        module: in this folder, with a function ``run``.
        expands_segments: whether the allocator has `ALLOCATOR_ENVIRONMENT`, as methods' steps do; plain PyTorch's have
            its default.
    """

    title: str
    limit_s: int
    module: str
    expands_segments: bool = False


PARTS = {
    "a": Part("contract tests that had not passed", 100, "contract", expands_segments=True),
    "b": Part("facts", 60, "facts"),
    "c": Part("steps of the league", 150, "league"),
    "d": Part("methods", 200, "methods", expands_segments=True),
    "e": Part("compiled tasks", 60, "inductor", expands_segments=True),
    "f": Part("the predicted memory as the limit", 40, "verification"),
}


def main(arguments: Sequence[str]) -> None:
    letter, folder, backend, *words = arguments
    visit = Visit(Path(folder), backend, is_small="--small" in words)
    import_module(f"benchmarks.gpu_visit.{PARTS[letter].module}").run(visit, visit.rows(letter))


if __name__ == "__main__":
    main(sys.argv[1:])
