"""A paper's HTML page from its experiments and its tables of results, without running anything."""

import base64
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from membench.core.errors import MembenchError
from membench.core.tables import read_csv
from membench.lab.papers.judging.closeness import Closeness, read_closeness
from membench.lab.papers.judging.closeness import Table as TextTable
from membench.lab.papers.judging.compare import read_results
from membench.lab.papers.judging.notes import Reason
from membench.lab.papers.judging.numbers import SHOWN_KEYS, Number, PaperNumbers, match_entries, stated_numbers
from membench.lab.papers.judging.origins import Origin, find_origins
from membench.lab.papers.judging.sensitivity import read_sensitivity, sensitivity_table
from membench.lab.papers.judging.tables import VALUE_COLUMNS
from membench.lab.papers.judging.verdicts import Verdict
from membench.lab.papers.reading.experiment import Experiment, Paper
from membench.lab.papers.reading.loader import known_papers, load_paper


@dataclass(frozen=True)
class Sources:
    """The folders that the report reads."""

    results: Path
    figures: Path
    experiments: Path


@dataclass(frozen=True)
class Explanation:
    """A sentence that explains a number.

    Attributes:
        kind: as "Known difference"; empty for what applies to this number alone.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Table:
    """Numbers of a table or figure.

    Attributes:
        explanations: explanation of each number.
        common: columns with the same text for all numbers.
        columns: names of the columns that differ.
        values: names of the values that at least one number has.
        common_explanations: the explanations of all numbers; None if they differ.
    """

    numbers: tuple[Number, ...]
    explanations: tuple[tuple[Explanation, ...], ...]
    common: Mapping[str, str]
    columns: tuple[str, ...]
    values: tuple[str, ...]
    common_explanations: tuple[Explanation, ...] | None

    @property
    def rows(self) -> list[tuple[Number, tuple[Explanation, ...]]]:
        """Each number with its explanations."""
        return list(zip(self.numbers, self.explanations, strict=True))

    @property
    def verdicts(self) -> str:
        """``"429 reproduced, 1 worse"``."""
        counts = Counter(number.verdict for number in self.numbers)
        return ", ".join(f"{counts[each]} {each.replace('_', ' ')}" for each in Verdict if counts[each])


@dataclass(frozen=True)
class Section:
    """One table or figure of a paper.

    Attributes:
        label: ``"Table 5"`` of ``table5``.
        judged: numbers that the paper states, with their verdict.
        shown: values of ours in the figure for which the paper prints no number.
        inputs: numbers that the experiments start from, which are not judged.
        figure: as a data URL; empty if there is none.
    """

    name: str
    label: str
    title: str
    judged: Table
    shown: Table
    inputs: Table
    figure: str


@dataclass(frozen=True)
class PaperPage:
    """The contents of one paper's page.

    Attributes:
        sensitivity: what changes under each alternative to a choice; without rows if none was run.
        overview: data URL of the picture of all judged numbers; empty if there is none.
        figures: data URLs of the figures without a section, by label.
    """

    numbers: PaperNumbers
    closeness: Closeness
    sensitivity: TextTable
    origins: tuple[Origin, ...]
    overview: str
    sections: tuple[Section, ...]
    figures: Mapping[str, str]


def papers_with_results(sources: Sources) -> list[str]:
    """Return the papers that have experiments and a scoreboard."""
    known = known_papers(sources.experiments)
    return [name for name in known if (sources.results / name / "scoreboard.csv").exists()]


def read_page(name: str, sources: Sources) -> PaperPage:
    """Read the contents of a paper's page; a number that the results lack was not run.

    Raises:
        MembenchError: there is no such paper, or there are no results of it.
    """
    known = known_papers(sources.experiments)
    if name not in known:
        raise MembenchError(f"there is no paper {name!r}; there are: {', '.join(known)}")
    if name not in papers_with_results(sources):
        raise MembenchError(f"there are no results of {name!r}; run `make reproduce-{name}` first")
    paper = load_paper(sources.experiments / name)
    numbers = stated_numbers(paper, read_results(sources.results / name))
    files = sorted((sources.figures / name).glob("*.png"), key=_order)
    figures = {path.stem: data_url(path) for path in files}
    experiments = sorted(paper.experiments, key=lambda experiment: _order(Path(experiment.name)))
    return PaperPage(
        numbers=numbers,
        closeness=read_closeness(sources.results / name),
        sensitivity=sensitivity_table(read_sensitivity(sources.results / name)),
        origins=tuple(find_origins(numbers, sources.results)),
        overview=figures.pop("overview", ""),
        sections=tuple(_section(each, numbers, figures.pop(each.name, ""), sources) for each in experiments),
        figures={_label(stem): url for stem, url in figures.items()},
    )


def _section(experiment: Experiment, numbers: PaperNumbers, figure: str, sources: Sources) -> Section:
    paper = numbers.paper
    lines = {row.line for row, _ in experiment.rows}
    stated = [number for number in numbers.stated if number.row.line in lines]
    shown = _shown(experiment, sources.results / paper.name / f"{experiment.name}.csv")
    return Section(
        name=experiment.name,
        label=_label(experiment.name),
        title=experiment.title,
        judged=_table(paper, [number for number in stated if number.verdict is not Verdict.INPUT]),
        shown=_table(paper, shown),
        inputs=_table(paper, [number for number in stated if number.verdict is Verdict.INPUT]),
        figure=figure,
    )


def _shown(experiment: Experiment, path: Path) -> list[Number]:
    """Return the numbers of a figure that the paper does not print, from the experiment's table of results."""
    rows = [row for row, _ in experiment.rows]
    pairs = zip(rows, match_entries(rows, read_csv(path) if path.exists() else []), strict=True)
    return [Number(row, entry, Reason(entry["reason"], ())) for row, entry in pairs if entry and not row.line]


def _table(paper: Paper, numbers: Sequence[Number]) -> Table:
    keys = {tuple(number.columns[name] for name in SHOWN_KEYS) for number in numbers}
    names = SHOWN_KEYS if len(keys) == len(numbers) else (*SHOWN_KEYS, "note")
    distinct = {name: list(dict.fromkeys(number.columns[name] for number in numbers)) for name in names}
    values = [number.values for number in numbers]
    explanations = tuple(_explanations(paper, number) for number in numbers)
    return Table(
        numbers=tuple(numbers),
        explanations=explanations,
        common={name: found[0] for name, found in distinct.items() if len(found) == 1 and found[0]},
        columns=tuple(name for name, found in distinct.items() if len(found) > 1),
        values=tuple(name for name in VALUE_COLUMNS if any(value[name] for value in values)),
        common_explanations=explanations[0] if len(set(explanations)) == 1 else None,
    )


def _explanations(paper: Paper, number: Number) -> tuple[Explanation, ...]:
    """Return what applies to a number alone, then the paper's remarks on it and the choices that it rests on."""
    kinds = {
        **{remark.text: "Held out" for remark in paper.held_out},
        **{remark.text: "Fitted" for remark in paper.fitted},
        **{remark.text: "Left open by the paper" for remark in paper.inconsistencies},
        **{remark.text: "Contradiction in the paper" for remark in paper.contradictions},
        **{remark.text: "Known difference" for remark in paper.causes},
    }
    choices = {choice.name: choice.text for choice in paper.choices}
    own = Explanation("", number.reason.text)
    return (
        *([own] if own.text else []),
        *(Explanation(kinds[text], text) for text in number.reason.explanations),
        *(Explanation(f"Choice: {name}", choices.get(name, "")) for name in number.standing.choices),
    )


def data_url(path: Path) -> str:
    """Return a PNG image as a URL that needs no other file; empty if there is none."""
    if not path.exists():
        return ""
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"


def _label(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=\d)", " ", name).capitalize()


def _order(path: Path) -> tuple[int, int, str]:
    """Return a sorting key: tables by number, then figures by number, then the rest."""
    if match := re.fullmatch(r"(table|figure)(\d+)(.*)", path.stem):
        return ("table", "figure").index(match[1]), int(match[2]), match[3]
    return 2, 0, path.stem
