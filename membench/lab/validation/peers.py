"""Peers: others who published predictions beside the measurements of a data set."""

from dataclasses import dataclass

from membench.core.checks import choice
from membench.lab.validation.distribution import STATISTICS
from membench.lab.validation.rows import QUANTITIES, Row


@dataclass(frozen=True)
class Peer:
    """A method whose errors on a data set are published, or its predictions of the rows.

    Attributes:
        name: the method's.
        quantity: one of `QUANTITIES`.
        knew: what it knew of the cards or of the rows.
        source: where its errors or predictions are published.
        statistic: one of `STATISTICS`, by which absolute relative errors are summed up.
        error: the statistic over all rows of the publication; None: not published.
        rows: their number; None: not published.
        same_rows: whether these are the data set's.
        value: the value of a row that is its prediction; empty: not published by row.
        unit: that of the value in the quantity's.

    Raises:
        MembenchError: there is no such quantity or statistic.
    """

    name: str
    quantity: str
    knew: str
    source: str
    statistic: str = "median"
    error: float | None = None
    rows: int | None = None
    same_rows: bool = False
    value: str = ""
    unit: float = 1.0

    def __post_init__(self) -> None:
        choice(QUANTITIES, "a peer's quantity", self.quantity)
        choice(STATISTICS, "a peer's statistic", self.statistic)

    def predicted(self, row: Row) -> float | None:
        """Return its prediction of a row; None: not published."""
        value = row.values.get(self.value)
        return float(value) * self.unit if isinstance(value, int | float) else None

    def error_of(self, row: Row) -> float | None:
        """Return (predicted - measured) / measured of a row, None without one of the two."""
        predicted, measured = self.predicted(row), row.measured.get(self.quantity)
        return None if predicted is None or measured is None else predicted / measured - 1
