"""Ratios of benchmarks, kept over commits."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from membench.core.files import write_whole

COLUMNS = ("benchmark", "ratio", "value", "commit", "time", "machine")
SHOWN_COMMITS = 6
_COMMIT_CHARACTERS = 8
_DAY_CHARACTERS = len("2026-11-27")
PAGE = """# Benchmarks of membench itself, over commits

Made by `make bench`. Each is a file of `benchmarks/`, whose first lines say what it compares. All values are ratios of
two sides of one run, so that they compare between machines; every one is in `ratios.csv`. Columns are the latest
commits at which a benchmark ran.
"""


def ratios_of(benchmark: str) -> dict[str, float]:
    """Run a benchmark here and return its ratios by what they compare; empty if it cannot run, and printed why."""
    found: dict[str, float] = import_module(f"benchmarks.{benchmark}").ratios()
    return found


def read(folder: Path) -> pd.DataFrame:
    """Return what is kept in a folder: a row for each ratio and commit, with `COLUMNS`."""
    path = folder / "ratios.csv"
    return pd.read_csv(path, dtype={"commit": str}) if path.exists() else pd.DataFrame(columns=list(COLUMNS))


def earlier(kept: pd.DataFrame, benchmark: str, ratio: str, commit: str) -> float | None:
    """Return the value of a ratio at the commit that was kept last before this one; None: there is none."""
    others = kept[(kept.benchmark == benchmark) & (kept.ratio == ratio) & (kept.commit != commit)]
    return None if others.empty else float(others.sort_values("time").value.iloc[-1])


def keep(folder: Path, benchmark: str, found: Mapping[str, float], facts: Mapping[str, Any]) -> None:
    """Add a benchmark's ratios to a folder's table and write its page; they replace those of the same commit.

    Args:
        facts: provenance of the run.
    """
    kept = read(folder)
    new = pd.DataFrame(
        [
            (benchmark, ratio, round(value, 4), facts["commit"], facts["time"], facts["machine"])
            for ratio, value in found.items()
        ],
        columns=list(COLUMNS),
    )
    old = kept[(kept.benchmark != benchmark) | (kept.commit != facts["commit"])]
    table = new if old.empty else pd.concat([old, new], ignore_index=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "ratios.csv", table.to_csv(index=False))
    write_whole(folder / "README.md", page(table))


def page(table: pd.DataFrame) -> str:
    """Return a Markdown table for each benchmark, a column for each of the latest commits at which it ran."""
    lines = [PAGE]
    for benchmark, rows in table.groupby("benchmark"):
        days = rows.groupby("commit").time.min().sort_values().tail(SHOWN_COMMITS).str[:_DAY_CHARACTERS]
        heads = [f"{str(commit)[:_COMMIT_CHARACTERS]} ({day})" for commit, day in days.items()]
        lines += [f"## {benchmark}", "", f"| ratio | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
        by_commit = rows.pivot_table(index="ratio", columns="commit", values="value", sort=False)
        for ratio, values in by_commit.reindex(columns=days.index).iterrows():
            cells = ["" if pd.isna(value) else f"{value:.3f}" for value in values]
            lines.append(f"| {ratio} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)
