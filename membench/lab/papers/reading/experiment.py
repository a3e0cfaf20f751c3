"""Experiments: the numbers that a paper states, in its own words, and the runs that answer them.

`experiments/<paper>/` holds a file per table or figure, which `loader` reads into these records. An experiment answers
each row of `reference.csv` in one of four ways: by a *value* of ours, by what was *trained* for it, as an *input* of
the experiments rather than a result, or as *not run* with the reason. Every row is answered exactly once. A figure also
*shows* values for which the paper prints no number.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from membench.core.errors import MembenchError
from membench.core.units import PRINTED_UNITS

T = TypeVar("T")

COMPARED = {"system": "methods", "model": "networks", "batch_size": "batch sizes", "device": "devices"}
"""Columns that may differ between the two numbers of a pair, and what is compared then."""


@dataclass(frozen=True)
class Row:
    """One number that a paper states, as it prints it, or, without `value`, one that a figure shows.

    Attributes:
        batch_size: None: the model's usual one.
        value: None: the paper prints no number.
        half_unit: half a unit of the last digit that the paper prints of `value`.
        oom: whether the paper states that the run was out of memory.
        line: in ``reference.csv``; None for a row that a figure only shows.
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
    half_unit: float = 0.0
    oom: bool = False
    note: str = ""
    claim_id: str = ""
    line: int | None = None


@dataclass(frozen=True)
class PaperCell:
    """One run in the paper's words, the names of `paper.yaml`; `compose_cells` gives its configuration.

    Attributes:
        batch_size: None: the model's usual one.
        budget: as text, ``"6 GB"``; None: the system's own.
    """

    model: str
    system: str
    device: str
    batch_size: int | str | None = None
    budget: str | None = None


class Form(StrEnum):
    """Comparison of a metric with that of another run, the reference."""

    INCREASE_PERCENT = "increase_percent"
    REDUCTION_PERCENT = "reduction_percent"
    PERCENT = "percent"
    RATIO = "ratio"
    DIFFERENCE = "difference"


class Take(StrEnum):
    """Aggregation of the values of many runs."""

    MEAN = "mean"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True)
class Quantity:
    """A value computed from records.

    Attributes:
        metric: metric of the row's cell, with `cell` changed in it.
        reference: fields of the cell, or the ``metric``, that differ in the run to compare with.
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
    """A value computed from trainings: the mean over their seeds, or whether one loses to another.

    Attributes:
        training: a name of `Paper.trainings`.
        metric: ``epochs_to_accuracy``, ``time_to_accuracy_s``, or one of the record's; a fraction's name may
            end in ``_percent`` (``test_accuracy_percent``, ``inference_accuracy_percent:5 MB``).
        ratio_to: the training whose value is the divisor, seed by seed; empty: no division.
        loses_to: if set, the value is 1 where `metric`, a fraction, is below that of this training, 0 where it is not
            by a point, and none where the interval over seeds leaves it open.
    """

    training: str
    metric: str
    ratio_to: str = ""
    loses_to: str = ""

    @property
    def trainings(self) -> tuple[str, ...]:
        """The names of the trainings that are needed."""
        return tuple(filter(None, (self.training, self.ratio_to, self.loses_to)))


@dataclass(frozen=True)
class Selection:
    """Rows by their columns: each named column must match one of its patterns, in which ``*`` is any text."""

    patterns: Mapping[str, tuple[str, ...]]

    def matches(self, row: Row) -> bool:
        """Return whether a row is selected."""
        return all(
            any(fnmatchcase("" if value is None else str(value), pattern) for pattern in patterns)
            for value, patterns in ((getattr(row, name), found) for name, found in self.patterns.items())
        )


@dataclass(frozen=True)
class Answer:
    """Answer to the rows that `where` selects: exactly one of value, trained, input and not_run.

    Attributes:
        direction_only: if set, only the direction is judged (above or below the baseline, or 1 if there is none); the
            text is why the values are not comparable.
        papers_largest: the name of the batch size that is the largest in the paper, where `value` is at the largest
            here; empty otherwise.
        unchanged: the paper claims no change from the baseline; judge whether ours is unchanged too.
        limit: ``lower`` or ``upper``, if the paper states its number only as such a limit.
        higher_is_better: the direction in which a deviation is a gain.
        baseline: columns that differ in the baseline's row; a row is judged by its ratio to that.
    """

    where: Selection
    value: Quantity | None = None
    trained: TrainedQuantity | None = None
    papers_largest: str = ""
    direction_only: str = ""
    unchanged: bool = False
    input: str = ""
    not_run: str = ""
    limit: str = ""
    higher_is_better: bool = False
    baseline: Mapping[str, Any] = field(default_factory=dict)

    @property
    def at_papers_largest(self) -> "Answer":
        """The answer at the paper's largest batch in place of the largest here; of other rows, the answer itself."""
        if self.value is None or not self.papers_largest:
            return self
        return replace(self, value=replace(self.value, cell={**self.value.cell, "batch_size": self.papers_largest}))


@dataclass(frozen=True)
class Experiment:
    """One table or figure: the rows that it answers or shows, each with its answer."""

    name: str
    title: str
    rows: tuple[tuple[Row, Answer], ...]


@dataclass(frozen=True)
class Remark:
    """A sentence about rows: an inconsistency of the paper, a cause of a deviation, a fit."""

    where: Selection
    text: str


@dataclass(frozen=True)
class Choice:
    """A reading or a constant that was chosen while rows that it decides were known."""

    name: str
    where: Selection
    text: str


@dataclass(frozen=True)
class CellChange:
    """A change of the configurations of some runs.

    Attributes:
        where: patterns of the run's ``model``, ``system`` and ``device`` in the paper's words, and of its
            ``framework``.
        set: merged into the configuration.
    """

    where: Mapping[str, str]
    set: Mapping[str, Any]

    def matches(self, words: Mapping[str, str]) -> bool:
        """Return whether a run with these words is changed."""
        return all(fnmatchcase(words[name], pattern) for name, pattern in self.where.items())


@dataclass(frozen=True)
class Alternative:
    """A reading or constant in place of a choice, which the paper's text admits as well.

    Attributes:
        choice: the name of the choice, or of what the paper leaves open without a choice on record.
        source: what speaks for it: the paper's section, or a publication.
        vocabulary: merged into ``paper.yaml``.
        metrics: metrics in place of others, in the answers to the rows that `rows` selects.
        answers: values in place of others, by ``where``.
        cells: changes of configurations.
        not_run: why it was not run; empty: it is run.
    """

    choice: str
    name: str
    source: str = ""
    vocabulary: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, str] = field(default_factory=dict)
    rows: Selection = field(default_factory=lambda: Selection({}))
    answers: tuple[Mapping[str, Any], ...] = ()
    cells: tuple[CellChange, ...] = ()
    not_run: str = ""


AS_CHOSEN = Alternative("", "")
"""The paper as its files read, without an alternative."""


@dataclass(frozen=True)
class Order:
    """Rows that state one quantity, and so the order of what they are of.

    Attributes:
        across: what differs between the two rows of a pair, while all other columns are equal: for each comparison,
            columns that may differ together.
        best: ``lower`` or ``higher``, where the best at each point of the first comparison is a statement of its own.
        within: a further column that must be equal; empty: none.
        convert: by claim, the conversion of a number to the quantity of the others, one of `rankings.CONVERSIONS`.
        in_words: ``above 1`` or ``below 1`` for ratios by which the paper states an order in words; each is a pair of
            its own.
    """

    quantity: str
    where: Selection
    across: tuple[tuple[str, ...], ...] = ()
    best: str = ""
    within: str = ""
    convert: Mapping[str, str] = field(default_factory=dict)
    in_words: str = ""


@dataclass(frozen=True)
class Paper:
    """A paper's vocabulary and its experiments.

    Attributes:
        models: by the paper's name: ``configuration`` (in conf/model), ``dataset``, and where it matters ``layers``,
            ``batch_sizes`` by name, ``set`` for options of the model, and a ``framework`` of its own; a paper's own
            metrics may need further entries.
        systems: by the paper's name: ``strategy``, ``framework``, ``set`` for options of the strategy, ``budget``,
            ``micro_batch``, ``exchange``, ``precision``, ``optimizer`` with the ``name`` of a file in conf/optimizer
            and options of it, and ``cluster`` for options of the cluster. A system that runs no step has
            ``function`` in place of ``strategy``: the dotted name of a function from `Paper` and `PaperCell` to
            numbers.
        devices: names in conf/device.
        clusters: names in conf/cluster, for entries of `devices` that are several.
        machines: names in conf/machine, for entries of `devices` whose machine is stated.
        training_images: in each data set.
        units: printed units, in membench's own.
        step_metrics: dotted name of a `StepMetrics` function that adds this paper's numbers to each record; empty:
            none.
        record_metrics: dotted names, by metric, of functions from `Paper`, `PaperCell` and `Record` to this paper's
            number, or to None where the run has none.
        trainings: by name, options of `conf/train.yaml`.
        contradictions: the paper's contradictions with itself.
        inconsistencies: what it leaves open, with our reading.
        causes: causes of deviations.
        fitted: rows on which a constant or a rule was fitted.
        held_out: rows that a fitted rule predicts, and that were known when the rule was written.
        choices: what was chosen while knowing judged rows, with the rows that rest on it.
        cannot_fail: rows that agree whatever the model does, with the reason.
        orders: rows whose order the paper states.
        alternatives: readings in place of the choices, each of which `loader.load_paper` can read the paper under.
        cell_changes: changes of the runs' configurations, under an alternative.
    """

    name: str
    title: str
    device: str
    models: Mapping[str, Mapping[str, Any]]
    systems: Mapping[str, Mapping[str, Any]]
    devices: Mapping[str, str]
    experiments: tuple[Experiment, ...]
    clusters: Mapping[str, str] = field(default_factory=dict)
    machines: Mapping[str, str] = field(default_factory=dict)
    contradictions: tuple[Remark, ...] = ()
    inconsistencies: tuple[Remark, ...] = ()
    causes: tuple[Remark, ...] = ()
    fitted: tuple[Remark, ...] = ()
    held_out: tuple[Remark, ...] = ()
    choices: tuple[Choice, ...] = ()
    cannot_fail: tuple[Remark, ...] = ()
    orders: tuple[Order, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    cell_changes: tuple[CellChange, ...] = ()
    training_images: Mapping[str, int] = field(default_factory=dict)
    units: Mapping[str, float] = field(default_factory=lambda: PRINTED_UNITS)
    step_metrics: str = ""
    record_metrics: Mapping[str, str] = field(default_factory=dict)
    trainings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def listed(kind: str, name: str, known: Mapping[str, T]) -> T:
    """Return the entry of a name that a paper's files use, ``listed("device", "K40", paper.devices)``.

    Raises:
        MembenchError: there is no such entry; lists the known names.
    """
    if name not in known:
        raise MembenchError(f"the paper's files name a {kind} {name!r}; there are: {', '.join(known)}")
    return known[name]


def framework_of(model: Mapping[str, Any], system: Mapping[str, Any]) -> str:
    """Return the framework of an entry of `Paper.models`, or else that of one of `Paper.systems`."""
    return str(model.get("framework", system["framework"]))
