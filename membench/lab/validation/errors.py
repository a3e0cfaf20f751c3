"""Errors of predictions: relative to what was measured, and their distribution over many rows."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from membench.lab.validation.dataset import DataSet
from membench.lab.validation.distribution import Distribution
from membench.lab.validation.predictions import RowPrediction
from membench.lab.validation.rows import Row
from membench.steps.predicted.intervals import Interval

ROOFLINE = "roofline_time_s"

PAIRS_DIFFER_BY = 0.1
"""Measured rates of a pair whose order is judged."""

_PREFIXES = re.compile(r"^(?:tf|gluon|legacy|swsl|ssl|ig|tv|adv)_")


@dataclass(frozen=True)
class Comparison:
    """A row and its prediction.

    Attributes:
        fitted: quantities of this row on which a constant was fitted.
        base: that of the row that it is compared with; None: there is none.
        intervals: by quantity, the bounds of its value that are predicted without knowing the row's data set.
    """

    row: Row
    prediction: RowPrediction
    fitted: frozenset[str] = frozenset()
    base: "Comparison | None" = None
    intervals: Mapping[str, Interval] = field(default_factory=dict)

    @property
    def family(self) -> str:
        """The network's family: the letters that its name begins with."""
        return family(self.row.network)

    @property
    def fits_right(self) -> bool | None:
        """Whether it was predicted that the row's batch fits and the next one that was tried does not; None: not known.

        Of a row that did not run, whether it was predicted that it does not fit.
        """
        if self.prediction.fits is None:
            return None
        if not self.row.fits:
            return not self.prediction.fits
        if self.row.next_batch_size is None:
            return self.prediction.fits
        return self.prediction.fits and not self.prediction.next_fits

    def error(self, quantity: str, by: str = "") -> float | None:
        """Return (simulated - measured) / measured of a quantity, None without one of the two.

        Args:
            by: the name of another prediction of it; empty: ours.
        """
        measured, simulated = self.row.measured.get(quantity), self.prediction.values.get(by or quantity)
        return None if measured is None or simulated is None else simulated / measured - 1

    def is_inside(self, quantity: str) -> bool | None:
        """Return whether a measured value lies in its interval; None: it has none."""
        if quantity not in self.intervals:
            return None
        low, high = self.intervals[quantity]
        return low <= self.row.measured[quantity] <= high

    def measured_change(self, quantity: str) -> float | None:
        """Return the measured value of a quantity over that of the base, None without one of the two."""
        own, others = (each and each.row.measured.get(quantity) for each in (self, self.base))
        return own / others if own and others else None

    def simulated_change(self, quantity: str) -> float | None:
        """Return the simulated value of a quantity over that of the base, None without one of the two.

        In place of a base that is not run stands that one's own base.
        """
        base = self.base
        while base is not None and not base.prediction.values:
            base = base.base
        own, others = (each and each.prediction.values.get(quantity) for each in (self, base))
        return own / others if own and others else None

    def change_error(self, quantity: str) -> float | None:
        """Return simulated change / measured change - 1 of a quantity, None without one of the two."""
        measured, simulated = self.measured_change(quantity), self.simulated_change(quantity)
        return None if measured is None or simulated is None else simulated / measured - 1

    def direction_right(self, quantity: str) -> bool | None:
        """Return whether a quantity was predicted to change in the direction in which it did; None: not known."""
        measured, simulated = self.measured_change(quantity), self.simulated_change(quantity)
        return None if measured is None or simulated is None else (simulated > 1) == (measured > 1)


@dataclass(frozen=True)
class Summary:
    """Errors of one quantity over a part of a data set.

    Attributes:
        part: ``judged``, ``fitted``, ``all``, a family or device among the judged rows, as ``family: resnet``, or
            ``changes``, of the judged rows against those that they are compared with.
        not_run: rows of the part without a prediction.
        ours: None: there is none.
        roofline: errors of a plain roofline, for times.
        fits_right: fraction of rows whose `Comparison.fits_right` holds; None: not published for this data set.
        inside: fraction of rows whose measured value lies in its interval; None: there are no intervals.
    """

    dataset: str
    part: str
    quantity: str
    not_run: int
    ours: Distribution | None
    roofline: Distribution | None
    fits_right: float | None
    inside: float | None = None
    directions_right: float | None = None


def family(network: str) -> str:
    """Return the letters that a network's name begins with, without a prefix that names the origin of its weights."""
    plain = _PREFIXES.sub("", network.lower())
    found = re.match(r"[a-z]+", plain)
    return found.group() if found else plain


def comparisons(dataset: DataSet, rows: Iterable[Row], predictions: Iterator[RowPrediction]) -> list[Comparison]:
    """Return rows of a data set with their predictions, which come in the same order."""
    made = {row.number: (row, next(predictions)) for row in rows}

    def comparison(number: int | None) -> Comparison | None:
        if number not in made:
            return None
        row, prediction = made[number]
        fitted = frozenset(name for name in dataset.quantities if dataset.is_fitted(row, name))
        return Comparison(row, prediction, fitted, comparison(row.base))

    return [found for found in map(comparison, made) if found]


@dataclass(frozen=True)
class Order:
    """Pairs of rows of one network on one kind of device, of which one is faster by more than `PAIRS_DIFFER_BY`.

    Attributes:
        pairs: whose rates are published.
        right: how many of these, in which the same one is predicted to be faster.
    """

    pairs: int
    right: int


def order_of(comparisons: Iterable[Comparison]) -> Order:
    """Return how many pairs of judged rows are predicted in the order of their measured rates."""
    rates: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for each in comparisons:
        row, simulated_s = each.row, each.prediction.values.get("step_time_s")
        measured_s = row.measured.get("step_time_s")
        if row.work and simulated_s and measured_s and "step_time_s" not in each.fitted:
            found = rates.setdefault((row.network, row.device), [])
            found.append((row.work / measured_s, row.work / simulated_s))
    pairs = [
        (first, second)
        for found in rates.values()
        for first, second in combinations(found, 2)
        if max(first[0], second[0]) > (1 + PAIRS_DIFFER_BY) * min(first[0], second[0])
    ]
    right = sum((first[0] > second[0]) == (first[1] > second[1]) for first, second in pairs)
    return Order(len(pairs), right)


def summaries(dataset: DataSet, comparisons: Sequence[Comparison]) -> list[Summary]:
    """Return the summaries of a data set: of all rows, those fitted on, and the judged ones by family and device."""
    return [line for quantity in dataset.quantities for line in _of_quantity(dataset, quantity, comparisons)]


def _of_quantity(dataset: DataSet, quantity: str, comparisons: Sequence[Comparison]) -> list[Summary]:
    judged = [each for each in comparisons if quantity not in each.fitted]
    fitted = [each for each in comparisons if quantity in each.fitted]
    parts: list[tuple[str, Sequence[Comparison]]] = [("judged", judged)]
    if fitted:
        parts += [("fitted", fitted), ("all", comparisons)]
    if len({each.row.device for each in judged}) > 1:
        parts += _by("device", judged, lambda each: each.row.device)
    parts += _by("family", judged, lambda each: each.family)
    lines = [_summary(dataset.name, part, quantity, members, has_limit=dataset.has_limit) for part, members in parts]
    compared = [each for each in judged if each.base]
    return [*lines, _changes(dataset.name, quantity, compared)] if compared else lines


def _changes(dataset: str, quantity: str, members: Sequence[Comparison]) -> Summary:
    return Summary(
        dataset,
        "changes",
        quantity,
        not_run=sum(not each.prediction.values for each in members),
        ours=Distribution.of(each.change_error(quantity) for each in members),
        roofline=None,
        fits_right=None,
        directions_right=_fraction(each.direction_right(quantity) for each in members),
    )


def _by(
    kind: str, comparisons: Sequence[Comparison], key: Callable[[Comparison], str]
) -> list[tuple[str, Sequence[Comparison]]]:
    names = sorted({key(each) for each in comparisons})
    return [(f"{kind}: {name}", [each for each in comparisons if key(each) == name]) for name in names]


def _summary(dataset: str, part: str, quantity: str, members: Sequence[Comparison], *, has_limit: bool) -> Summary:
    is_time = quantity == "step_time_s"
    return Summary(
        dataset,
        part,
        quantity,
        not_run=sum(not each.prediction.values for each in members),
        ours=Distribution.of(each.error(quantity) for each in members),
        roofline=Distribution.of(each.error(quantity, ROOFLINE) for each in members) if is_time else None,
        fits_right=_fraction(each.fits_right for each in members) if has_limit else None,
        inside=_fraction(each.is_inside(quantity) for each in members),
    )


def _fraction(found: Iterable[bool | None]) -> float | None:
    """Return the fraction of those that hold among those that are known; None if none is."""
    known = [each for each in found if each is not None]
    return sum(known) / len(known) if known else None
