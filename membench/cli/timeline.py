"""Draw one step: which tasks run when, and what holds the memory.

    membench timeline model=resnet50 strategy=vdnn_all device=k40m batch_size=32

Takes the options of `membench run`: the step is simulated, or with backend=cpu or backend=cuda measured. Writes a picture
(.png, .pdf) and a trace (.trace.json) for chrome://tracing and Perfetto into outputs/timelines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra import compose

from membench.cli.command_line import check_arguments
from membench.core.device import file_name
from membench.core.errors import MembenchError
from membench.core.record import Configuration
from membench.papers.cells import cell_configuration, hydra_composition

DIRECTORY = Path("outputs") / "timelines"


@dataclass(frozen=True)
class Settings:
    """The composed configuration of the cell to draw."""

    configuration: Configuration


def parse(words: Sequence[str]) -> Settings:
    """Return the cell that the words describe.

    Raises:
        MembenchError: a word is not an option, or its value is invalid.
    """
    if flags := [word for word in words if word.startswith("-")]:
        raise MembenchError(f"{flags[0]!r} is not an option; a picture shows one step")
    check_arguments(words)
    with hydra_composition():
        return Settings(cell_configuration(compose("config", list(words))))


def run(settings: Settings) -> int:
    """Write the picture and the trace, print their paths, and return the exit code."""
    # torch and matplotlib take seconds, which a wrong word need not wait for
    from membench.pictures.picture import draw, save
    from membench.pictures.trace import trace_json
    from membench.sweep.observe import observe

    observed = observe(settings.configuration)
    path = DIRECTORY / file_name(observed.title)
    pictures = save(draw(observed), path)
    trace = path.with_name(f"{path.name}.trace.json")
    trace.write_text(trace_json(observed))
    print(*pictures, trace, sep="\n")
    return 0
