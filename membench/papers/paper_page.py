"""What a paper's page shows, read from its experiments and its tables of results.

Nothing is run and no number is computed anew: verdicts and values are those of the tables.
"""

import base64
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from membench.core.errors import MembenchError
from membench.papers.compare import Entry, by_key, read_results
from membench.papers.experiment import Answer, Experiment, Paper, Row
from membench.papers.loader import known_papers, load_paper
from membench.papers.notes import Note, Reason, numbered_notes, refer
from membench.papers.printed import in_full, rounded
from membench.papers.scoreboard import DEVIATES, Summary, is_calibrated, summarize
from membench.papers.tables import KEY_COLUMNS, VALUE_COLUMNS, Measured, format_number, key_columns, read_csv
from membench.papers.verdicts import Verdict
from membench.sweep.provenance import git

_SHOWN_KEYS = tuple(name for name in KEY_COLUMNS if name != "unit")


@dataclass(frozen=True)
class Sources:
    """Folders that the report is made of."""

    results: Path
    figures: Path
    experiments: Path


@dataclass(frozen=True)
class Number:
    """One number with the paper's value and ours beside it.

    Attributes:
        row: as the experiment has it.
        entry: as the results have it.
        verdict: None where the paper prints no such number and a figure merely shows ours.
        calibrated: the model was fitted on it.
    """

    row: Row
    entry: Entry
    verdict: Verdict | None
    calibrated: bool = False

    @property
    def columns(self) -> dict[str, str]:
        """What the number is of, by column; the last is the paper's note on it."""
        return {**{name: self.entry[name] for name in _SHOWN_KEYS}, "note": self.row.note}

    @property
    def values(self) -> dict[str, str]:
        """The paper's, simulated and measured value with their unit, and the deviation."""
        unit, papers = self.entry["unit"], self.entry["paper_value"]
        values = {name: rounded(self.entry[name], unit, papers=papers) for name in VALUE_COLUMNS[1:3]}
        values = {"paper_value": in_full(papers, unit), **values}
        if self.row.oom:
            values["paper_value"] = values["paper_value"] or "out of memory"
        if self.verdict is Verdict.OUT_OF_MEMORY:
            values["simulated_value"] = "out of memory"
        off = self.entry["deviation"]
        return {**values, "deviation": f"{round(float(off), 3) + 0:+.1%}" if off else ""}  # + 0: no -0.0 %


@dataclass(frozen=True)
class Table:
    """Numbers of a table or figure, to be read together.

    Attributes:
        common: the columns that are the same in all of them.
        columns: those that differ.
        values: of a `Number`, those of which one at least is there.
        reasons: that of each number.
        reason: the one that all of them have; None where they differ.
    """

    numbers: tuple[Number, ...]
    common: Mapping[str, str]
    columns: tuple[str, ...]
    values: tuple[str, ...]
    reasons: tuple[Reason, ...]
    reason: Reason | None

    @property
    def verdicts(self) -> str:
        """``"429 reproduced, 1 worse"``."""
        counts = Counter(number.verdict for number in self.numbers)
        return ", ".join(
            f"{counts[verdict]} {verdict.replace('_', ' ')}" for verdict in Verdict if counts[verdict]
        )


@dataclass(frozen=True)
class Section:
    """One table or figure of a paper.

    Attributes:
        judged: numbers that the paper states, with a verdict each, or the reason why they were not run.
        shown: what the figure draws without a number of the paper's.
        inputs: numbers that the experiments start from; they are not judged.
        figure: as a data URL; empty where there is none.
    """

    name: str
    title: str
    judged: Table
    shown: Table
    inputs: Table
    figure: str

    @property
    def label(self) -> str:
        """``"Table 5"`` of ``table5``."""
        return _label(self.name)


@dataclass(frozen=True)
class Origin:
    """Where and when numbers were made.

    Attributes:
        commit: the last one that changed them; empty where git knows of none.
        changed: the files differ from that commit.
    """

    device: str
    count: int
    commit: str
    date: str
    changed: bool


@dataclass(frozen=True)
class PaperPage:
    """All that one paper's page shows.

    Attributes:
        predicted, verdicts: counts without the rows on which the model was fitted.
        fitted: counts of those.
        notes: by heading, numbered throughout.
    """

    name: str
    title: str
    predicted: Summary
    fitted: Summary
    verdicts: Counter[Verdict]
    origins: tuple[Origin, ...]
    notes: Mapping[str, tuple[Note, ...]]
    sections: tuple[Section, ...]
    figures: Mapping[str, str]


def papers_with_results(sources: Sources) -> list[str]:
    """Return the papers that have experiments and a scoreboard."""
    known = known_papers(sources.experiments)
    return [name for name in known if (sources.results / name / "scoreboard.csv").exists()]


def read_page(name: str, sources: Sources) -> PaperPage:
    """Read what a paper's page shows. A number that its results do not have yet is one that was not run.

    Raises:
        MembenchError: there is no such paper, or there are no results of it.
    """
    known = known_papers(sources.experiments)
    if name not in known:
        raise MembenchError(f"there is no paper {name!r}; there are: {', '.join(known)}")
    if name not in papers_with_results(sources):
        raise MembenchError(f"there are no results of {name!r}; run `make reproduce-{name}` first")
    paper = load_paper(sources.experiments / name)
    board = read_results(sources.results / name)
    numbers = {
        experiment.name: _numbers(paper, experiment, board, sources) for experiment in paper.experiments
    }
    stated = [number for found in numbers.values() for number in found if number.verdict is not None]
    figures = {
        path.stem: _data_url(path) for path in sorted((sources.figures / name).glob("*.png"), key=_order)
    }
    notes = numbered_notes(
        (
            ("Known differences", paper.causes, [n.row for n in stated if n.verdict in DEVIATES]),
            ("Inconsistencies of the paper itself", paper.inconsistencies, [n.row for n in stated]),
            ("Fits", paper.calibration, [n.row for n in stated if n.calibrated]),
        )
    )
    predicted = [number.verdict for number in stated if number.verdict and not number.calibrated]
    experiments = sorted(paper.experiments, key=lambda experiment: _order(Path(experiment.name)))
    return PaperPage(
        name=name,
        title=paper.title,
        predicted=summarize(predicted),
        fitted=summarize(number.verdict for number in stated if number.verdict and number.calibrated),
        verdicts=Counter(predicted),
        origins=tuple(_origins(paper, stated, sources)),
        notes=notes,
        sections=tuple(
            _section(e, numbers[e.name], figures.pop(e.name, ""), list(chain.from_iterable(notes.values())))
            for e in experiments
        ),
        figures={_label(stem): url for stem, url in figures.items()},
    )


def _numbers(paper: Paper, experiment: Experiment, board: Sequence[Entry], sources: Sources) -> list[Number]:
    """Put an experiment's rows beside the scoreboard's lines, and those that it shows beside its table's."""
    stated = [(row, answer) for row, answer in experiment.rows if row.line is not None]
    shown = [row for row, _ in experiment.rows if row.line is None]
    known = _matched([row for row, _ in stated], board)
    numbers = [_number(paper, row, answer, entry) for (row, answer), entry in zip(stated, known, strict=True)]
    path = sources.results / paper.name / f"{experiment.name}.csv"
    table = read_csv(path) if path.exists() else []
    drawn = zip(shown, _matched(shown, table), strict=True)
    return [*numbers, *(Number(row, entry, None) for row, entry in drawn if entry)]


def _matched(rows: Sequence[Row], entries: Sequence[Entry]) -> list[Entry | None]:
    """Return each row's line, or None where the results have none.

    Rows that are alike in all but their batch size, which may be one that we found, pair up in their order.
    """
    names = (*(name for name in KEY_COLUMNS if name != "batch_size"), "paper_value")
    own = [{**key_columns(row), "paper_value": format_number(row.value)} for row in rows]
    known = by_key(entries, *names)
    return [known.get(key) for key in by_key(own, *names)]


def _number(paper: Paper, row: Row, answer: Answer, entry: Entry | None) -> Number:
    if entry is None:
        verdict = Verdict.INPUT if answer.input else Verdict.NOT_RUN
        values = {**dict.fromkeys(VALUE_COLUMNS, ""), "paper_value": format_number(row.value)}
        reason = f"not in the results yet: make reproduce-{paper.name}"
        return Number(row, {**key_columns(row), **values, "reason": answer.input or reason}, verdict)
    if entry["batch_size"]:  # where the paper leaves it open, the one that was run
        row = replace(row, batch_size=int(entry["batch_size"]))
    verdict = Verdict(entry["verdict"])
    return Number(row, entry, verdict, is_calibrated(paper, row, verdict))


def _section(
    experiment: Experiment, numbers: Sequence[Number], figure: str, notes: Sequence[Note]
) -> Section:
    return Section(
        name=experiment.name,
        title=experiment.title,
        judged=_table([n for n in numbers if n.verdict not in (None, Verdict.INPUT)], notes),
        shown=_table([n for n in numbers if n.verdict is None], notes),
        inputs=_table([n for n in numbers if n.verdict is Verdict.INPUT], notes),
        figure=figure,
    )


def _table(numbers: Sequence[Number], notes: Sequence[Note]) -> Table:
    keys = {tuple(number.entry[name] for name in _SHOWN_KEYS) for number in numbers}
    names = _SHOWN_KEYS if len(keys) == len(numbers) else (*_SHOWN_KEYS, "note")
    distinct = {name: list(dict.fromkeys(number.columns[name] for number in numbers)) for name in names}
    values = [number.values for number in numbers]
    reasons = tuple(refer(number.entry["reason"], notes) for number in numbers)
    return Table(
        numbers=tuple(numbers),
        common={name: found[0] for name, found in distinct.items() if len(found) == 1 and found[0]},
        columns=tuple(name for name, found in distinct.items() if len(found) > 1),
        values=tuple(name for name in VALUE_COLUMNS if any(value[name] for value in values)),
        reasons=reasons,
        reason=reasons[0] if len(set(reasons)) == 1 else None,
    )


def _origins(paper: Paper, stated: Sequence[Number], sources: Sources) -> Iterator[Origin]:
    """Yield first what was simulated, then what was measured on each device."""
    simulated = [number for number in stated if number.entry["simulated_value"]]
    named = {number.entry["device"] or paper.device for number in simulated}
    profiles = ", ".join(sorted({paper.devices.get(name, name) for name in named}))
    yield origin(f"simulated: {profiles}", sources.results / paper.name, len(simulated))
    measured = Measured(sources.results / "measured")
    devices = [measured.find(number.row)[1] for number in stated if number.entry["measured_value"]]
    for device in dict.fromkeys(devices):
        folder = sources.results / "measured" / device if device else sources.results / paper.name
        where = device or "where each number's reason says"
        yield origin(f"measured: {where}", folder, devices.count(device))


def origin(device: str, folder: Path, count: int) -> Origin:
    """Return where so many numbers were made, whose files lie in a folder, as git knows it."""
    path = str(folder.resolve())
    commit, _, date = (git("log", "-1", "--format=%h %cs", "--", path) or "").partition(" ")
    changed = bool(commit and git("status", "--porcelain", "--", path))
    return Origin(device, count, commit, date, changed)


def _data_url(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _label(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=\d)", " ", name).capitalize()


def _order(path: Path) -> tuple[int, int, str]:
    """Sort tables by number, then figures by number, then the rest."""
    match = re.fullmatch(r"(table|figure)(\d+)(.*)", path.stem)
    if not match:
        return 2, 0, path.stem
    return ("table", "figure").index(match.group(1)), int(match.group(2)), match.group(3)
