"""Errors for the user: each message contains the problem, the value and the remedy."""

import copyreg
from collections.abc import Iterable
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from membench.core.units import format_bytes


class MembenchError(Exception):
    """Base of all errors that a user can cause and correct; the command line prints them as one line."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without calling the constructor, whose arguments are not kept."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


def one_line(error: Exception) -> str:
    """Return another library's error message without line breaks."""
    return " ".join(str(error).split())


_LIKENESS = 0.65
"""Least ratio of `difflib.SequenceMatcher` at which a word counts as mistyped: ``rnu`` for ``run`` has 0.67."""


def near(word: object, known: Iterable[str]) -> str:
    """Return the question that ends an error about an unknown word; empty if it is like none of the known ones.

    ``near("stratgy", ["strategy", "seed"]) == "; did you mean 'strategy'?"``
    """
    ratios = {name: SequenceMatcher(None, str(word).lower(), name.lower()).ratio() for name in map(str, known)}
    best = max(ratios.values(), default=0.0)
    found = [name for name, ratio in ratios.items() if ratio == best >= _LIKENESS]
    found += [name for name in ratios if name.startswith(f"{word}_".lower()) and name not in found]
    return f"; did you mean {' or '.join(map(repr, found[:3]))}?" if found else ""


def unknown(what: str, word: object, known: Iterable[str]) -> str:
    """Return the error about a word that is none of those known: what is meant first, then all that there are.

    ``unknown("device", "h10", ["h100", "t4"])`` is ``"device 'h10' is not known; did you mean 'h100'? There are: h100,
    t4"``.
    """
    names = list(map(str, known))
    question = near(word, names)
    return f"{what} {word!r} is not known{question or ';'} {'There' if question else 'there'} are: {listed(names)}"


def listed(names: Iterable[str]) -> str:
    """Return names in a row."""
    return ", ".join(names) or "none"


class UnsupportedModel(MembenchError):
    """A module does something that a task graph cannot express."""

    def __init__(self, layer: str, cause: str, remedy: str) -> None:
        where = f"layer {layer!r}" if layer else "the module"
        super().__init__(f"{where} is not supported: {cause}; {remedy}")
        self.layer = layer


class BatchMismatch(UnsupportedModel):
    """The example batch is not of the shapes, the dtypes or the names that a module or its loss takes.

    Args:
        what: does not fit, such as ``"the batch does not fit layer 'conv1'"``.
        cause: a clause of torch's.
        given: the tensors that were given, in words.
    """

    def __init__(self, layer: str, what: str, cause: str, given: str) -> None:
        MembenchError.__init__(self, f"{what}: {cause.rstrip('.')}; given: {given}")
        self.layer = layer


class UnsupportedStrategy(MembenchError):
    """A strategy cannot schedule this graph, or there is no strategy of that name."""


class InvalidSchedule(MembenchError):
    """A schedule would read memory that is not resident, or overwrite memory that is still in use."""

    def __init__(self, index: int, hazard: str) -> None:
        super().__init__(f"instruction {index}: {hazard}")
        self.index = index
        self.hazard = hazard


class InfeasibleSchedule(MembenchError):
    """A budget is smaller than a strategy's peak memory, or a limit of host memory than what must be there at once.

    Attributes:
        on_host: whether it is host memory that is too small.
        micro_batch: the size in question, if sizes other than the batch were tried.
        ranks: that share the host memory that is too small; the sizes are those of one.
    """

    def __init__(
        self,
        *,
        task: str,
        needed_bytes: int,
        budget_bytes: int,
        lower_bound_bytes: int,
        micro_batch: int | None = None,
        on_host: bool = False,
        ranks: int = 1,
    ) -> None:
        what, limit = ("host memory", "host_memory") if on_host else ("a budget", "the budget")
        where, remedy = "", f"raise {limit}, or lower the batch size"
        if micro_batch is not None:
            where = f" in micro-batches of {micro_batch}, the least demanding of those tried"
            remedy = f"raise {limit}"
        shared = f", which each of {ranks} ranks has of the host's," if ranks > 1 else ""
        bound = (
            "" if on_host else f"no schedule of this graph can do with less than {format_bytes(lower_bound_bytes)}; "
        )
        super().__init__(
            f"{what} of {format_bytes(budget_bytes)}{shared} is too small{where}: {task} needs "
            f"{format_bytes(needed_bytes)} "
            f"({needed_bytes:,} bytes) with this strategy; {bound}{remedy}"
        )
        self.task = task
        self.needed_bytes = needed_bytes
        self.budget_bytes = budget_bytes
        self.lower_bound_bytes = lower_bound_bytes
        self.micro_batch = micro_batch
        self.on_host = on_host
        self.ranks = ranks

    def of_micro_batch(self, micro_batch: int) -> "InfeasibleSchedule":
        """Return the same error for the micro-batch with the least demand of those that were tried."""
        return InfeasibleSchedule(**{**vars(self), "micro_batch": micro_batch})


class OutOfMemory(MembenchError):
    """A schedule does not fit the device's memory.

    Attributes:
        needed_bytes: the predicted peak; None if there is no prediction.
    """

    def __init__(self, *, needed_bytes: int | None, capacity_bytes: int) -> None:
        needed = "more memory" if needed_bytes is None else format_bytes(needed_bytes)
        message = f"the step needs {needed} and the device has {format_bytes(capacity_bytes)}"
        if needed_bytes is not None and needed_bytes <= capacity_bytes:
            message += ", where its allocator, which takes whole segments, found no room; raise the budget"
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.capacity_bytes = capacity_bytes


class DiskFailed(MembenchError):
    """The disk that keeps blocks of a step is full or broken, or its folder cannot be used.

    Args:
        what: was to be done, such as ``"write 'weight:exp_avg'"``.
        cause: a clause.
        remedy: an imperative.
    """

    def __init__(self, what: str, folder: Path, cause: str, remedy: str) -> None:
        super().__init__(f"the disk could not {what} in {folder}: {cause}; {remedy}")
        self.folder = folder


class ExchangeFailed(MembenchError):
    """A process of a data-parallel step could not exchange data with the others."""

    def __init__(self, what: str, process: int, processes: int) -> None:
        super().__init__(
            f"process {process} of {processes} could not exchange {what} with the others: one of them has ended, or "
            "did not answer in time; look at what that one printed, and start all of them again"
        )


class ShapeMismatch(MembenchError):
    """A step was called with tensors of other shapes or dtypes than it was captured for."""


class ModuleChanged(MembenchError):
    """A step was called after its module had changed since the capture: a mode, a layer, a weight."""


class StepOutdated(MembenchError):
    """A step computes something else than its module, and may have done so in earlier calls."""


class MissingDataset(MembenchError):
    """A data set's files are missing.

    Args:
        missing: the missing path, below `root`.
        download: what to download, and from where.
    """

    def __init__(self, name: str, *, missing: Path, root: Path, download: str) -> None:
        super().__init__(
            f"{name} has no {missing}: download {download} and unpack it in {root}, "
            "or name the directory that holds it with data.root=DIRECTORY"
        )
        self.missing = missing
