"""How each alternative to a choice (`choices.yaml`) changes a paper's verdicts, orders and deviations."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from membench.core.tables import read_csv
from membench.lab.papers.judging.closeness import Closeness, Table
from membench.lab.papers.judging.compare import TOLERANCE, Change, compare
from membench.lab.papers.judging.deviations import NAMES, spread
from membench.lab.papers.judging.numbers import PaperNumbers
from membench.lab.papers.judging.verdicts import AGREES
from membench.lab.papers.reading.experiment import Alternative, Paper

MEDIANS = tuple(f"median_{name.replace(' ', '_')}" for name in NAMES)
COLUMNS = (
    "choice", "alternative", "source", "values_changed", "reproduced", "rows_gained", "rows_lost", "pairs_agree",
    "pairs_gained", "pairs_lost", *MEDIANS, "not_run",
)  # fmt: skip
ROW_COLUMNS = (
    "choice", "alternative", "claim", "item", "model", "batch_size", "system", "metric", "unit", "paper_value",
    "value_before", "value_after", "verdict_before", "verdict_after",
)  # fmt: skip
_AS_CHOSEN = "as chosen"


class Read(NamedTuple):
    """A paper's numbers under one reading."""

    numbers: PaperNumbers
    closeness: Closeness

    @classmethod
    def of(cls, numbers: PaperNumbers) -> "Read":
        """Return the numbers with their orders and deviations."""
        return cls(numbers, Closeness.of(numbers))


def with_stated_rows_only(paper: Paper) -> Paper:
    """Return a paper without the values that its figures show, which no verdict depends on."""
    experiments = (replace(each, rows=tuple(pair for pair in each.rows if pair[0].line)) for each in paper.experiments)
    return replace(paper, experiments=tuple(experiments))


def base_line(base: Read) -> dict[str, str]:
    """Return the line of `COLUMNS` of a paper as its files read."""
    return _line({"alternative": _AS_CHOSEN}, base)


def alternative_line(base: Read, alternative: Alternative, read: Read) -> dict[str, str]:
    """Return the line of `COLUMNS` of an alternative."""
    changes = _changes(base, read)
    moved = [(_agrees(change.before), _agrees(change.after)) for change in changes]
    before, after = (_agreeing_pairs(each.closeness) for each in (base, read))
    counts = {
        "values_changed": len(changes),
        "rows_gained": moved.count((False, True)),
        "rows_lost": moved.count((True, False)),
        "pairs_gained": len(after - before),
        "pairs_lost": len(before - after),
    }
    return _line(_named(alternative) | {name: str(count) for name, count in counts.items()}, read)


def not_run_line(alternative: Alternative) -> dict[str, str]:
    """Return the line of `COLUMNS` of an alternative that was not run."""
    return dict.fromkeys(COLUMNS, "") | _named(alternative) | {"not_run": alternative.not_run}


def row_lines(base: Read, alternative: Alternative, read: Read) -> list[dict[str, str]]:
    """Return a line of `ROW_COLUMNS` for each row whose verdict changes."""
    lines = []
    for change in _changes(base, read):
        if change.changed_verdict:
            before, after = change.before, change.after
            sides = {"before": before, "after": after}
            line = {
                **{name: before.get(name, "") for name in ROW_COLUMNS},
                **_named(alternative),
                "claim": before["claim"],
                **{f"value_{side}": entry["simulated_value"] for side, entry in sides.items()},
                **{f"verdict_{side}": entry["verdict"] for side, entry in sides.items()},
            }
            lines.append({name: line[name] for name in ROW_COLUMNS})
    return lines


def read_sensitivity(folder: Path) -> list[dict[str, str]]:
    """Return the lines of a paper's ``sensitivity.csv``; none if its alternatives have not been run."""
    path = folder / "sensitivity.csv"
    return read_csv(path, columns=COLUMNS) if path.exists() else []


def sensitivity_table(lines: Sequence[Mapping[str, str]]) -> Table:
    """Return what a page shows of `COLUMNS`; of the medians those that an alternative changes."""
    base = lines[0] if lines else {}
    rows: list[tuple[str, ...]] = []
    for line in lines:
        medians = (
            f"{name}: {line[column] or 'none'}"
            for name, column in zip(NAMES, MEDIANS, strict=True)
            if (line is base and line[column]) or line[column] != base[column]
        )
        rows.append(
            (
                line["choice"],
                line["alternative"],
                line["source"],
                line["values_changed"],
                _with_moves(line["reproduced"], line["rows_gained"], line["rows_lost"]),
                _with_moves(line["pairs_agree"], line["pairs_gained"], line["pairs_lost"]),
                f"not run: {line['not_run']}" if line["not_run"] else "; ".join(medians),
            )
        )
    columns = (
        "Choice",
        "Alternative",
        "Admitted by",
        "Values changed",
        "Reproduced",
        "Pairs as in the paper",
        "Medians",
    )
    return Table(columns, rows)


def _with_moves(count: str, gained: str, lost: str) -> str:
    moves = ", ".join(f"{sign}{moved}" for sign, moved in (("+", gained), ("-", lost)) if moved not in ("", "0"))
    return f"{count} ({moves})" if moves else count


def _named(alternative: Alternative) -> dict[str, str]:
    return {"choice": alternative.choice, "alternative": alternative.name, "source": alternative.source}


def _changes(base: Read, read: Read) -> Sequence[Change]:
    """Return the predicted rows whose value or verdict changes."""
    before, after = (
        [{**n.entry, "claim": n.row.claim_id} for n in each.numbers.stated if n.standing.is_predicted]
        for each in (base, read)
    )
    found = compare(before, after, tolerance=TOLERANCE)
    return (*found.verdicts, *found.values)


def _agrees(entry: Mapping[str, str]) -> bool:
    return entry["verdict"] in AGREES


def _agreeing_pairs(closeness: Closeness) -> set[tuple[str, ...]]:
    names = ("quantity", "compared", "point", "first", "second", "paper_first", "paper_second")
    return {tuple(line[name] for name in names) for line in closeness.predicted("pair") if line["agree"] == "true"}


def _line(own: dict[str, str], read: Read) -> dict[str, str]:
    medians = (spread(read.closeness.deviations, name)[1] for name in NAMES)
    found = {
        "reproduced": str(read.numbers.predicted.agree),
        "pairs_agree": str(read.closeness.pairs.agree),
        **dict(zip(MEDIANS, medians, strict=True)),
    }
    return dict.fromkeys(COLUMNS, "") | found | own
