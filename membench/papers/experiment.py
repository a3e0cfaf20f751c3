"""Experiments: what a paper states, in its own words, and which runs answer it.

`experiments/<paper>/` holds a file per table or figure, which `suite/papers.py` reads into these records. An experiment
says for each row of `reference.csv` one of four things: the *value* of ours that answers it, what was *trained* for it,
that it is an *input* of the experiments rather than a result, or why it is *not run*. Every row is accounted for exactly once. A figure besides
*shows* values for which the paper prints no number.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from membench.core.errors import MembenchError

T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One number that a paper states (or, without `value`, one that a figure shows), as it prints it.

    Attributes:
        batch_size: None where the paper leaves the model's usual one.
        value: None where the paper prints none.
        oom: the paper states that it ran out of memory.
        line: where it stands in ``reference.csv``; None for a row that a figure merely shows.
    """

    item: str
    model: str = ""
    dataset: str = ""
    batch_size: int | None = None
    device: str = ""
    system: str = ""
    metric: str = ""
    unit: str = ""
    value: float | None = None
    oom: bool = False
    note: str = ""
    claim_id: str = ""
    line: int | None = None


@dataclass(frozen=True)
class Cell:
    """One run in the paper's words: the names of `paper.yaml`.

    Attributes:
        batch_size: None: the model's usual one.
        budget: as a person writes it (``"6 GB"``); None: the system's own.
    """

    model: str
    system: str
    device: str
    batch_size: int | str | None = None
    budget: str | None = None


class Form(StrEnum):
    """How a metric of a run is put beside that of another run, the reference."""

    INCREASE_PERCENT = "increase_percent"
    REDUCTION_PERCENT = "reduction_percent"
    PERCENT = "percent"
    RATIO = "ratio"
    DIFFERENCE = "difference"


class Take(StrEnum):
    """How values of many runs become one."""

    MEAN = "mean"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True)
class Quantity:
    """A value computed from records.

    Attributes:
        metric: of the row's cell, with `cell` changed in it.
        reference: what differs in the run that it is compared with (a ``metric`` may differ too).
        over: fields of the cell, and the values that `take` runs over.
    """

    metric: str
    cell: Mapping[str, Any] = field(default_factory=dict)
    times: float = 1.0
    form: Form | None = None
    reference: Mapping[str, Any] = field(default_factory=dict)
    take: Take | None = None
    over: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainedQuantity:
    """A value computed from trainings: the mean over their seeds.

    Attributes:
        training: a name of `Paper.trainings`.
        metric: ``epochs_to_accuracy``, ``time_to_accuracy_s``, or one of the record's; of a fraction with ``_percent`` behind
            its name (``test_accuracy_percent``, ``inference_accuracy_percent:5 MB``).
        ratio_to: the training whose value it is divided by; none: it stands alone.
    """

    training: str
    metric: str
    ratio_to: str = ""


@dataclass(frozen=True)
class Selection:
    """Rows by their columns: each named column must match one of its patterns (``*`` stands for anything)."""

    patterns: Mapping[str, tuple[str, ...]]

    def matches(self, row: Row) -> bool:
        return all(
            any(fnmatchcase(_column_text(row, name), pattern) for pattern in patterns)
            for name, patterns in self.patterns.items()
        )


def _column_text(row: Row, name: str) -> str:
    """Return a column as the reference file writes it."""
    value = getattr(row, name)
    return "" if value is None else str(value)


@dataclass(frozen=True)
class Answer:
    """What stands for the rows that `where` matches: exactly one of value, trained, input and not_run.

    Attributes:
        direction_only: if set, only the direction is judged (above or below the baseline, or 1 if there is none); the text is why
            the values are not comparable.
        unchanged: the paper claims no change from the baseline; judge whether ours is unchanged too.
        limit: the paper says only that its number is a ``lower`` or an ``upper`` limit.
        higher_is_better: the direction in which a deviation is a gain.
        baseline: what differs in the row of the baseline, through the ratio to which a row is judged.
    """

    where: Selection
    value: Quantity | None = None
    trained: TrainedQuantity | None = None
    direction_only: str = ""
    unchanged: bool = False
    input: str = ""
    not_run: str = ""
    limit: str = ""
    higher_is_better: bool = False
    baseline: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """One table or figure: the rows that it answers and those that it shows."""

    name: str
    title: str
    rows: tuple[tuple[Row, Answer], ...]


@dataclass(frozen=True)
class Remark:
    """A sentence about rows: a paper's inconsistency, a deviation's cause, a calibration."""

    where: Selection
    text: str


@dataclass(frozen=True)
class Paper:
    """A paper's vocabulary and its experiments.

    Attributes:
        models: by the paper's name: ``configuration`` (in conf/model), ``dataset``, and where it matters ``layers``,
            ``batch_sizes`` by name, ``steps_per_iteration`` (see the function), and a ``framework`` of its own.
        systems: by the paper's name: ``strategy``, ``framework``, ``set`` for options of the strategy, ``budget``,
            ``exchange``, and ``cluster`` for options of the cluster.
        devices: names in conf/device.
        clusters: names in conf/cluster, for those of `devices` that are several.
        training_images: in each data set.
        trainings: by name, options of `conf/train.yaml`; none where nothing is trained to accuracy.
    """

    name: str
    title: str
    device: str
    models: Mapping[str, Mapping[str, Any]]
    systems: Mapping[str, Mapping[str, Any]]
    devices: Mapping[str, str]
    clusters: Mapping[str, str]
    training_images: Mapping[str, int]
    experiments: tuple[Experiment, ...]
    inconsistencies: tuple[Remark, ...]
    causes: tuple[Remark, ...]
    calibration: tuple[Remark, ...]
    trainings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def listed(kind: str, name: str, known: Mapping[str, T]) -> T:
    """Return what stands under a name that a paper's files use, ``listed("device", "K40", paper.devices)``.

    Raises:
        MembenchError: nothing does; lists the names that there are.
    """
    if name not in known:
        raise MembenchError(f"the paper's files name a {kind} {name!r}; there are: {', '.join(known)}")
    return known[name]


def framework_of(model: Mapping[str, Any], system: Mapping[str, Any]) -> str:
    """Return the system's framework, or the model's own, which the system's cannot express.

    Args:
        model: as `Paper.models` has it.
        system: as `Paper.systems` has it.
    """
    name: str = model.get("framework", system["framework"])
    return name


def steps_per_iteration(model: Mapping[str, Any], system: Mapping[str, Any]) -> int:
    """Return the forward and backward passes that a system's framework calls one iteration of a model.

    Args:
        model: as `Paper.models` has it; ``steps_per_iteration`` names the frameworks in which it is not one.
        system: as `Paper.systems` has it.
    """
    steps: int = model.get("steps_per_iteration", {}).get(framework_of(model, system), 1)
    return steps
