"""Cells of a paper: `membench run paper=...`, whose words are those of `membench run` and the paper's own.

    membench run -m paper=layrub model=resnet1001,wrn28_10 strategy=layrub_hybrid,memonger batch_size=normal,largest

The networks, methods and devices that the words name become the paper's, with its framework, card and options; other
words change those. Beside the records, `rows.csv` has the rows of the paper's tables that these cells answer.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig

from membench.cli import run as cells
from membench.cli.callback import SweepCallback
from membench.cli.command_line import HYDRA_ERRORS, explain, parse_changes
from membench.cli.words import CONFIG_DIR, take_config_dir
from membench.core.configuration import ROOT
from membench.core.errors import MembenchError, unknown
from membench.core.files import shown
from membench.core.record import Record, configuration_hash
from membench.core.tables import write_csv
from membench.lab.papers.judging.tables import MeasuredValues, table
from membench.lab.papers.pages.results import needed_cells
from membench.lab.papers.reading.cells import compose_cells
from membench.lab.papers.reading.experiment import Paper
from membench.lab.papers.reading.groups import file_of, name_of, names_of, write_groups
from membench.lab.papers.reading.loader import folder_of, load_paper
from membench.lab.papers.reading.quantities import Result, cells_of, evaluate
from membench.sweep.composition import hydra_composition
from membench.sweep.processes.worker_main import CELL, RECORD

EXPERIMENTS = ROOT / "experiments"
ROWS = "rows.csv"
_OPTION = "paper"
_KINDS = {"model": "network", "strategy": "method"}
"""Groups of which a paper's own are to be named, and what they are called."""


@dataclass(frozen=True)
class PaperRun:
    """A paper, and the words of `membench run` without the user's folder of files."""

    paper: Paper
    folder: Path
    words: list[str]
    own: Path | None


def parse(words: Sequence[str]) -> PaperRun:
    """Return the paper that the words name, and the other words; those are checked where they are run.

    Raises:
        MembenchError: there is no such paper, or several are named.
    """
    own, words = take_config_dir(words)
    named = [word.partition("=")[2] for word in words if word.partition("=")[0] == _OPTION]
    if len(named) > 1 or "," in named[0]:
        raise MembenchError(f"name one paper, not {', '.join(named)}")
    folder = folder_of(named[0], EXPERIMENTS)
    rest = [word for word in words if word.partition("=")[0] != _OPTION]
    return PaperRun(load_paper(folder), folder, rest, own)


def run(options: PaperRun) -> int:
    """Run cells as `membench run` does, with the paper's vocabulary in a folder of files; return the exit code."""
    if options.own:
        raise MembenchError(f"{CONFIG_DIR} and {_OPTION}= do not go together; add what is missing to {options.folder}")
    with TemporaryDirectory(prefix="membench-") as place:
        folder = Path(place)
        write_groups(options.paper, folder)
        words = [CONFIG_DIR, place, *in_groups(options.paper, options.words, folder)]
        words += [f'{_OPTION}="{options.folder}"', f"hydra.callbacks.sweep._target_={__name__}.PaperCallback"]
        return cells.run(cells.parse(words))


def in_groups(paper: Paper, words: Sequence[str], folder: Path) -> list[str]:
    """Return words with a paper's networks, methods and devices in place of what stands for them.

    Args:
        folder: the paper's `write_groups`.

    Raises:
        MembenchError: the paper has no such method, or no network or method is named.
    """
    flags = [word for word in words if word.startswith("-")]
    options = [word for word in words if not word.startswith("-")]
    names = names_of(paper)
    try:
        with hydra_composition(folder):
            parsed = {str(each.key_or_group): each for each in parse_changes(options)}
            chosen = {group: _values(parsed[group]) for group in names if group in parsed}
    except HYDRA_ERRORS as error:
        raise MembenchError(explain(error, "run")) from error
    chosen = {"device": [paper.device], **chosen}
    for group, kind in _KINDS.items():
        if group not in chosen:
            first, *others = names[group]
            raise MembenchError(f"name a {kind} of {paper.name}: {group}={first}, or any of: {', '.join(others)}")
    kept = [word for word in options if word.partition("=")[0] not in chosen]
    return [*flags, *(_word(paper, group, values) for group, values in chosen.items()), *kept]


def _values(override: Override) -> list[str]:
    if not override.is_sweep_override():
        return [str(override.value())]
    return [value.strip("\"'") for value in override.sweep_string_iterator()]


def _word(paper: Paper, group: str, values: Sequence[str]) -> str:
    known, kind = names_of(paper)[group], _KINDS.get(group, group)
    chosen = []
    for value in values:
        name = name_of(known, value)
        if name is None and group == "strategy":
            raise MembenchError(unknown(f"{kind} of {paper.name}", value, known))
        if name is None:
            print(f"{paper.name} has no {kind} {value!r}: no row of its tables is of that one", file=sys.stderr)
        chosen.append(value if name is None else f'"{file_of(paper, name)}"')
    return f"{group}={','.join(chosen)}"


class PaperCallback(SweepCallback):
    """Adds to the summary the rows of a paper's tables that the cells answer."""

    def _summarize(self, config: DictConfig, sweep: Path, folders: list[Path]) -> None:
        records = {
            configuration_hash(json.loads((folder / CELL).read_text())): Record.from_json(path.read_text())
            for folder in folders
            if (path := folder / RECORD).exists() and not config.dry_run
        }
        results = rows_of(load_paper(Path(config.paper)), records)
        if results:
            write_csv(table(results, MeasuredValues(ROOT / "results" / "measured")), sweep / ROWS)
        super()._summarize(config, sweep, folders)
        if results:
            print(f"{len(results)} rows of the paper's tables: {shown(sweep / ROWS)}")


def rows_of(paper: Paper, records: dict[str, Record]) -> list[Result]:
    """Return the rows of a paper's experiments whose cells all have a record, with the values that follow.

    Args:
        records: by the hash of the configuration that was asked for, whose batch size may be ``largest``.
    """
    hashes = {cell: configuration_hash(made) for cell, made in compose_cells(paper, needed_cells(paper)).items()}
    found = {cell: records[key] for cell, key in hashes.items() if key in records}
    return [
        evaluate(paper, row, answer, found)
        for experiment in paper.experiments
        for row, answer in experiment.rows
        if answer.value and (needed := set(cells_of(paper, row, answer))) and needed <= found.keys()
    ]
