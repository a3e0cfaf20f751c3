"""Draw one step: which tasks run when, and what holds the memory.

    membench timeline model=resnet50 strategy=vdnn_all device=k40m batch_size=32

Takes the options of `membench run`, --config-dir FOLDER included: the step is simulated, or with backend=cpu or
backend=cuda measured. Writes a picture (.png, .pdf) and a trace (.trace.json) for chrome://tracing and Perfetto into
outputs/timelines.
"""

from collections.abc import Sequence
from pathlib import Path

from hydra import compose

from membench.cli.command_line import MULTIRUN, check_arguments
from membench.cli.words import refuse_flags, refuse_options, take_config_dir, with_own_model
from membench.core.errors import MembenchError
from membench.core.files import write_whole
from membench.core.hardware.device import file_name
from membench.core.record import Configuration
from membench.sweep.composition import cell_configuration, hydra_composition


def parse(words: Sequence[str]) -> Configuration:
    """Return the configuration of the cell to draw."""
    own, words = take_config_dir(words)
    if MULTIRUN & set(words):
        raise MembenchError("-m is not an option; a picture shows one step")
    refuse_flags(words)
    words = with_own_model(words)
    refuse_options({word.partition("=")[0] for word in words}, "timeline")
    check_arguments(words, own)
    with hydra_composition(own):
        return cell_configuration(compose("config", words))


def run(cell: Configuration) -> int:
    """Write the picture and the trace, print their paths, and return the exit code."""
    # torch and matplotlib take seconds, which a wrong word need not wait for
    from membench.pictures.picture import draw, save
    from membench.pictures.trace import trace_json
    from membench.sweep.cells.observe import observe

    observed = observe(cell)
    path = Path("outputs") / "timelines" / file_name(observed.title)
    pictures = save(draw(observed), path)
    trace = path.with_name(f"{path.name}.trace.json")
    write_whole(trace, trace_json(observed))
    print(*pictures, trace, sep="\n")
    return 0
