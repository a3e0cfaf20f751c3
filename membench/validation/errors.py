"""Errors of predictions: relative to what was measured, and their distribution over many rows."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from membench.validation.dataset import DataSet, Row
from membench.validation.predictions import RowPrediction

ROOFLINE = "roofline_time_s"
WITHIN = (0.10, 0.25, 0.50)
_PREFIXES = re.compile(r"^(?:tf|gluon|legacy|swsl|ssl|ig|tv|adv)_")


@dataclass(frozen=True)
class Comparison:
    """A row and its prediction.

    Attributes:
        is_fitted: whether a constant of the cost model was fitted on this row.
    """

    row: Row
    prediction: RowPrediction
    is_fitted: bool

    @property
    def family(self) -> str:
        """The network's family: the letters that its name begins with."""
        return family(self.row.network)

    @property
    def fits_right(self) -> bool | None:
        """Whether it was predicted that the row's batch fits and the next one that was tried does not; None: not known."""
        if self.prediction.fits is None:
            return None
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


@dataclass(frozen=True)
class Distribution:
    """Distribution of relative errors.

    Attributes:
        rows: with an error.
        median, p90: of absolute values.
        bias: the median with its sign; negative: too low.
        within: fraction of rows within each of `WITHIN`.
    """

    rows: int
    median: float
    p90: float
    bias: float
    within: tuple[float, ...]

    @classmethod
    def of(cls, errors: Iterable[float | None]) -> "Distribution | None":
        """Return the distribution of those that are not None; None if none is left."""
        signed = np.array([error for error in errors if error is not None])
        if not len(signed):
            return None
        absolute = np.abs(signed)
        return cls(
            rows=len(signed),
            median=float(np.median(absolute)),
            p90=float(np.quantile(absolute, 0.9)),
            bias=float(np.median(signed)),
            within=tuple(float(np.mean(absolute <= limit)) for limit in WITHIN),
        )


@dataclass(frozen=True)
class Summary:
    """Errors of one quantity over a part of a data set.

    Attributes:
        part: ``judged``, ``fitted``, ``all``, or a family or device among the judged rows, as ``family: resnet``.
        not_run: rows of the part without a prediction.
        ours: None: there is none.
        roofline: of a plain roofline, for times.
        fits_right: fraction of rows whose `Comparison.fits_right` holds; None: not published for this data set.
    """

    dataset: str
    part: str
    quantity: str
    not_run: int
    ours: Distribution | None
    roofline: Distribution | None
    fits_right: float | None


def family(network: str) -> str:
    """Return the letters that a network's name begins with, without the prefix of whoever trained its weights."""
    plain = _PREFIXES.sub("", network.lower())
    found = re.match(r"[a-z]+", plain)
    return found.group() if found else plain


def summaries(dataset: DataSet, comparisons: Sequence[Comparison]) -> list[Summary]:
    """Return the summaries of a data set: of all rows, those fitted on, and the judged ones by family and device."""
    judged = [each for each in comparisons if not each.is_fitted]
    fitted = [each for each in comparisons if each.is_fitted]
    parts: list[tuple[str, Sequence[Comparison]]] = [("judged", judged)]
    if fitted:
        parts += [("fitted", fitted), ("all", comparisons)]
    if len({each.row.device for each in judged}) > 1:
        parts += _by("device", judged, lambda each: each.row.device)
    parts += _by("family", judged, lambda each: each.family)
    return [
        _summary(dataset.name, part, quantity, members, has_ladder=dataset.has_ladder)
        for quantity in dataset.quantities
        for part, members in parts
    ]


def _by(
    kind: str, comparisons: Sequence[Comparison], key: Callable[[Comparison], str]
) -> list[tuple[str, Sequence[Comparison]]]:
    names = sorted({key(each) for each in comparisons})
    return [(f"{kind}: {name}", [each for each in comparisons if key(each) == name]) for name in names]


def _summary(
    dataset: str, part: str, quantity: str, members: Sequence[Comparison], *, has_ladder: bool
) -> Summary:
    right = [each.fits_right for each in members if each.fits_right is not None]
    is_time = quantity == "step_time_s"
    return Summary(
        dataset,
        part,
        quantity,
        not_run=sum(not each.prediction.values for each in members),
        ours=Distribution.of(each.error(quantity) for each in members),
        roofline=Distribution.of(each.error(quantity, ROOFLINE) for each in members) if is_time else None,
        fits_right=sum(right) / len(right) if right and has_ladder else None,
    )
