"""Train networks to accuracy under memory strategies, with several seeds, and write their learning curves.

    membench train model=digits_cnn data=digits strategy=layrub_hybrid epochs=20 seeds=[0,1,2]
    membench train layrub          the trainings of a paper, experiments/layrub/trainings.yaml

The first writes ``training.csv`` (a row for each seed and epoch) and ``training.jsonl`` (records with provenance) to
``folder``, the second to results/<paper>, where `membench reproduce` reads them. A paper may be of an installed package
or any folder, as there. A run with a record is not run again. Exits with 1 if a run failed.
--config-dir FOLDER adds your own files to those of conf/, as in `membench run`.
"""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from membench.cli.commands import groups_of
from membench.cli.option_values import built, check_built
from membench.cli.words import FLAG, in_own_words, refuse_flags, split, take_config_dir
from membench.core.configuration import ROOT, instantiate
from membench.core.document import Table
from membench.core.errors import MembenchError, near
from membench.core.files import shown
from membench.core.packages import added_folders
from membench.core.record import Outcome
from membench.core.result import Output, print_answer
from membench.core.tables import read_csv
from membench.lab.cli.trainings import Training, compose_training, compose_trainings, find_trainings, run_trainings
from membench.lab.papers.reading.loader import folder_of, known_papers, read_trainings, results_of

EXPERIMENTS = ROOT / "experiments"
_TRAININGS = "trainings.yaml"


@dataclass(frozen=True)
class Options:
    """The trainings to run, and the folder that their curves and records go to."""

    trainings: Annotated[tuple[Training, ...], FLAG]
    directory: Annotated[Path, FLAG]
    output: Output = Output.TEXT


def parse(words: Sequence[str]) -> Options:
    """Return the training that ``option=value`` words describe, or the trainings of the paper that the only word is."""
    own, words = take_config_dir(words)
    refuse_flags(words)
    papers, _ = split(words)
    if not papers:
        training, directory, output = compose_training(in_own_words(words, groups_of("train"), own), own=own)
        return Options((training,), directory, output)
    folders = [*added_folders("experiments"), EXPERIMENTS]
    known = [name for each in folders for name in known_papers(each) if (each / name / _TRAININGS).exists()]
    if len(words) > 1 or not (papers[0] in known or (Path(papers[0]) / _TRAININGS).is_file()):
        problem = f"{' '.join(words)!r} is neither one paper nor a list of option=value"
        suggestion = near(papers[0], known)
        raise MembenchError(f"{problem}; papers with trainings: {', '.join(known)}{suggestion}")
    folder = folder_of(papers[0], EXPERIMENTS)
    trainings = compose_trainings(read_trainings(folder / _TRAININGS))
    return Options(tuple(trainings), results_of(folder, EXPERIMENTS, ROOT / "results") / folder.name)


def run(options: Options) -> int:
    """Run the trainings that have no record yet, and return the exit code."""
    directory = options.directory
    complete = find_trainings(options.trainings, directory)  # for these no data is needed
    for training in options.trainings:
        if training.name not in complete:
            _check(training)
    with redirect_stdout(sys.stdout if options.output is Output.TEXT else sys.stderr):
        made = run_trainings(options.trainings, directory)
        print(f"curves in {shown(directory / 'training.csv')}, records in {shown(directory / 'training.jsonl')}")
    if options.output is not Output.TEXT:
        rows = read_csv(directory / "training.csv")
        print_answer(options.output, [Table.of(rows)], rows=rows)
    return int(any(record.outcome is not Outcome.OK for records in made.values() for record in records))


def _check(training: Training) -> None:
    """Refuse a training that cannot be built, or whose data is missing or does not fit the model, before any runs."""
    # torch takes seconds, which a wrong word need not wait for
    from membench.lab.training.loop import check_fit
    from membench.strategies.base import find_strategy

    configuration = training.runs[0]
    check_built(configuration | configuration["recipe"], ("model", "strategy"))
    if "inference" in configuration:
        find_strategy(configuration["inference"]["strategy"])
    model = configuration["model"]
    dataset = built("data", partial(instantiate, configuration["data"]))
    check_fit(dataset, model)
