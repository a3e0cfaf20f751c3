"""`python -m membench.cli.timeline model=resnet50 strategy=vdnn_all device=k40m batch_size=32`: pictures of one step.

Takes the options of `python -m membench`, and so draws simulated runs and, with backend=cpu or backend=cuda, measured
ones. Writes a picture (.png, .pdf) and a trace (.trace.json) that chrome://tracing and Perfetto open.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from hydra import compose

from membench.cli.command_line import check_arguments
from membench.core.device import file_name
from membench.core.errors import MembenchError
from membench.core.files import complaint
from membench.core.record import Configuration
from membench.papers.cells import cell_configuration, hydra_composition

DIRECTORY = Path("outputs") / "timelines"


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    try:
        if options := [word for word in arguments if word.startswith("-")]:
            raise MembenchError(f"{options[0]!r} is no option here: a picture is of one step")
        check_arguments(arguments)
        with hydra_composition():
            configuration = cell_configuration(compose("config", list(arguments)))
        for path in _write(configuration):
            print(path)
    except (MembenchError, OSError) as error:
        print(complaint(error), file=sys.stderr)
        return 2
    return 0


def _write(configuration: Configuration) -> list[Path]:
    # torch and matplotlib take seconds; a wrong word should not
    from membench.pictures.picture import draw, save
    from membench.pictures.trace import trace_json
    from membench.sweep.observe import observe

    run = observe(configuration)
    path = DIRECTORY / file_name(run.title)
    pictures = save(draw(run), path)
    trace = path.with_name(f"{path.name}.trace.json")
    trace.write_text(trace_json(run))
    return [*pictures, trace]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
