"""The origin of a page's numbers: the device that they are of, and the commit that last changed them."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from membench.lab.papers.judging.numbers import PaperNumbers
from membench.lab.papers.judging.tables import MeasuredValues
from membench.sweep.results.provenance import git


@dataclass(frozen=True)
class Origin:
    """Device, commit and date of some numbers.

    Attributes:
        commit: the last one that changed their files; empty outside a repository.
        changed: the files differ from that commit.
    """

    device: str
    count: int
    commit: str
    date: str
    changed: bool


def find_origins(numbers: PaperNumbers, results: Path) -> Iterator[Origin]:
    """Yield the origin of the simulated numbers, then that of the numbers measured on each device.

    Args:
        results: the folder of all papers' results.
    """
    paper = numbers.paper
    simulated = [number for number in numbers.stated if number.entry["simulated_value"]]
    named = {number.entry["device"] or paper.device for number in simulated}
    profiles = ", ".join(sorted({paper.devices.get(name, name) for name in named}))
    yield origin(f"simulated: {profiles}", results / paper.name, len(simulated))
    measured = MeasuredValues(results / "measured")
    devices = [measured.find(number.row)[1] for number in numbers.stated if number.entry["measured_value"]]
    for device in dict.fromkeys(devices):
        folder = results / "measured" / device if device else results / paper.name
        where = device or "see each number's reason"
        yield origin(f"measured: {where}", folder, devices.count(device))


def origin(device: str, folder: Path, count: int) -> Origin:
    """Return the origin of `count` numbers whose files lie in a folder, according to git."""
    path = str(folder.resolve())
    commit, _, date = (git("log", "-1", "--format=%h %cs", "--", path) or "").partition(" ")
    changed = bool(commit and git("status", "--porcelain", "--", path))
    return Origin(device, count, commit, date, changed)
