"""Train networks to accuracy under memory strategies, with several seeds, and write their curves.

    python -m membench.cli.train model=digits_cnn data=digits strategy=layrub_hybrid epochs=20 seeds=[0,1,2]
    python -m membench.cli.train layrub          the trainings of a paper, experiments/layrub/trainings.yaml

The first writes ``training.csv`` (a row for each seed and epoch) and ``training.jsonl`` (the records, with their provenance) to
``output``, the second to results/<paper>; a run of a paper's that has its record there is not run again.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from membench.cli.command_line import EXPLAINED, explain
from membench.cli.option_values import built, check_built
from membench.cli.trainings import GROUPS, Training, compose_training, compose_trainings, run_trainings
from membench.core.configuration import ROOT, instantiate
from membench.core.errors import MembenchError
from membench.core.files import shown
from membench.core.record import Outcome
from membench.papers.loader import read_trainings
from membench.sweep.listing import INTERRUPTED


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    try:
        trainings, directory = _asked(arguments)
        for training in trainings:
            _check(training)
        made = run_trainings(trainings, directory)
    except EXPLAINED as error:
        print(explain(error, GROUPS), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 130
    print(f"curves in {shown(directory / 'training.csv')}, records in {shown(directory / 'training.jsonl')}")
    failed = [record for training in made.values() for record in training if record.outcome is not Outcome.OK]
    return 1 if failed else 0


def _asked(arguments: Sequence[str]) -> tuple[list[Training], Path]:
    """Return what the command line asks for, and where its files go."""
    known = sorted(path.parent.name for path in (ROOT / "experiments").glob("*/trainings.yaml"))
    papers = [word for word in arguments if "=" not in word]
    if not papers:
        training, directory = compose_training(arguments)
        return [training], directory
    if len(arguments) > 1 or papers[0] not in known:
        raise MembenchError(
            f"{' '.join(arguments)!r} is neither one paper nor a list of option=value; "
            f"papers with trainings: {', '.join(known)}"
        )
    return compose_trainings(
        read_trainings(ROOT / "experiments" / papers[0] / "trainings.yaml")
    ), ROOT / "results" / papers[0]


def _check(training: Training) -> None:
    """Refuse what cannot be built, and data that is not there or that the model does not take, before anything runs."""
    from membench.strategies.base import find_strategy  # torch takes seconds; a wrong word should not
    from membench.training.loop import check_fit

    configuration = training.runs[0]
    recipe = {name: configuration["recipe"][name] for name in ("batch_size", "seed")}
    check_built(configuration | recipe, ("model", "strategy"))
    if "inference" in configuration:
        find_strategy(configuration["inference"]["strategy"])
    model = configuration["model"]
    dataset = built("data", partial(instantiate, configuration["data"]))
    check_fit(dataset, model=model["name"], input_shape=model["input_shape"], classes=model["classes"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
