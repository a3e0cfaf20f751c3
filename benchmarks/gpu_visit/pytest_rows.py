"""A plugin of pytest: each test's result is a row, written at once; a test that has passed is not run again."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.gpu_visit.rows import Rows

ROWS_VARIABLE = "MEMBENCH_VISIT_ROWS"
BACKEND_VARIABLE = "MEMBENCH_VISIT_BACKEND"


def _rows() -> Rows:
    return Rows(Path(os.environ[ROWS_VARIABLE]), os.environ[BACKEND_VARIABLE])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    done = _rows().done()
    left = [item for item in items if item.nodeid in done]
    items[:] = [item for item in items if item.nodeid not in done]
    config.hook.pytest_deselected(items=left)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write the result of a test's call, or of what failed or was skipped around it.

    In the process that starts the others.
    """
    if "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.passed):
        return
    name, seconds = report.nodeid, round(report.duration, 3)
    if report.skipped:
        _rows().write(name, {"not_run": _last_line(report), "wall_s": seconds})
    elif report.failed:
        _rows().write(name, {"error": _last_line(report), "when": report.when, "wall_s": seconds})
    else:
        _rows().write(name, {"passed": True, "wall_s": seconds})


def _last_line(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    lines: Sequence[str] = report.longreprtext.strip().splitlines()
    causes = [line[1:].strip() for line in lines if line.startswith("E ")]
    return " | ".join(causes[:4]) or (lines[-1] if lines else "")
