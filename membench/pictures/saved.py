"""The files of a step's timeline: a picture, a trace, and a snapshot of its memory."""

from pathlib import Path

from membench.core.files import write_whole
from membench.pictures.observed_step import ObservedStep
from membench.pictures.picture import draw, save
from membench.pictures.snapshot import save_snapshot
from membench.pictures.trace import trace_json


def save_timeline(step: ObservedStep, path: Path) -> tuple[Path, ...]:
    """Write the files of a timeline, whose names begin with a path, and its folder if there is none.

    Returns:
        The paths of a picture (``.png``, ``.pdf``), a trace for Perfetto (``.trace.json``) and a snapshot for PyTorch's
        memory_viz (``.snapshot.pickle``).
    """
    pictures = save(draw(step), path)
    trace, snapshot = (path.with_name(f"{path.name}.{ending}") for ending in ("trace.json", "snapshot.pickle"))
    write_whole(trace, trace_json(step))
    save_snapshot(step, snapshot)
    return (*pictures, trace, snapshot)
