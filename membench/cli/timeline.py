"""Draw one step: which tasks run when, and what holds the memory.

    membench timeline model=resnet50 strategy=vdnn_all device=k40m batch_size=32

Takes the options of `membench run`, --config-dir FOLDER included: the step is simulated, or with backend=cpu or
backend=cuda measured. Writes into outputs/timelines a picture (.png, .pdf), a trace (.trace.json) for chrome://tracing
and Perfetto, and the memory as a snapshot (.snapshot.pickle), as torch.cuda.memory._dump_snapshot writes it, for
https://pytorch.org/memory_viz.
"""

from collections.abc import Sequence
from pathlib import Path

from membench.cli.command_line import compose_step, words_of_one_step
from membench.core.extras import require
from membench.core.hardware.device import file_name
from membench.core.record import Configuration
from membench.sweep.composition import cell_configuration


def parse(words: Sequence[str]) -> Configuration:
    """Return the configuration of the cell to draw."""
    own, words = words_of_one_step(words, "a picture shows one step")
    step = cell_configuration(compose_step("timeline", words, own, {}))
    require("figures", "the picture of a step")
    return step


def run(cell: Configuration) -> int:
    """Write the files, print their paths, and return the exit code."""
    # torch and matplotlib take seconds, which a wrong word need not wait for
    from membench.pictures.saved import save_timeline
    from membench.sweep.cells.observe import observe

    observed = observe(cell)
    print(*save_timeline(observed, Path("outputs") / "timelines" / file_name(observed.title)), sep="\n")
    return 0
