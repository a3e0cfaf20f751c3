"""The league: errors of others who published predictions beside measurements, and ours on these rows.

description of a data set (``peers``) -> results/league/<data set>.csv, summary.csv and README.md
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from membench.core.tables import format_number, write_csv
from membench.lab.validation.dataset import DataSet
from membench.lab.validation.distribution import STATISTICS, interval_of
from membench.lab.validation.errors import Comparison
from membench.lab.validation.page import render
from membench.lab.validation.peers import Peer

OURS, OPEN = "membench", "open"


@dataclass(frozen=True)
class Standing:
    """A peer's error and ours.

    Attributes:
        rows: judged rows, on which our error is taken.
        ours, peers: mean or median of absolute relative errors, as the peer has it.
        ours_interval, peers_interval: bounds of a bootstrap over rows; None: of a single row, or the peer's own number.
        peers_rows: rows of the peer's error; None: not published.
        is_same: whether the peer's error is taken on the rows of ours.
    """

    data: DataSet
    peer: Peer
    rows: int
    ours: float
    ours_interval: tuple[float, float] | None
    peers: float
    peers_interval: tuple[float, float] | None
    peers_rows: int | None
    is_same: bool

    @property
    def ahead(self) -> str:
        """Whose error is the smaller one; `OPEN` where the peer's lies inside the interval of ours."""
        low, high = self.ours_interval or (self.ours, self.ours)
        if low < self.peers < high:
            return OPEN
        return OURS if self.ours < self.peers else self.peer.name


def standings(compared: Sequence[tuple[DataSet, Sequence[Comparison]]]) -> list[Standing]:
    """Return the standing beside each peer of each data set that has rows with both values."""
    made = (_standing(data, peer, rows) for data, rows in compared for peer in data.peers)
    return [each for each in made if each is not None]


def _standing(data: DataSet, peer: Peer, rows: Sequence[Comparison]) -> Standing | None:
    judged = [each for each in rows if peer.quantity not in each.fitted and each.error(peer.quantity) is not None]
    known = [(each, error) for each in judged if (error := peer.error_of(each.row)) is not None]
    taken = [each for each, _ in known] or judged
    ours = [abs(error) for each in taken if (error := each.error(peer.quantity)) is not None]
    if not ours or not (known or peer.error is not None):
        return None
    of_peer = [abs(error) for _, error in known]
    statistic = STATISTICS[peer.statistic]
    return Standing(
        data,
        peer,
        rows=len(ours),
        ours=float(statistic(ours)),
        ours_interval=interval_of(ours, statistic),
        peers=float(statistic(of_peer)) if known else peer.error or 0.0,
        peers_interval=interval_of(of_peer, statistic),
        peers_rows=len(known) if known else peer.rows,
        is_same=bool(known) or peer.same_rows,
    )


def write_league(compared: Sequence[tuple[DataSet, Sequence[Comparison]]], folder: Path) -> None:
    """Write the page, a summary, and a table of each data set with peers."""
    found = standings(compared)
    for data, rows in compared:
        if data.peers:
            lines = [line for each in rows for line in _lines(data, each)]
            write_csv(pd.DataFrame(lines), folder / f"{data.name}.csv")
    write_csv(pd.DataFrame([_summary(each) for each in found]), folder / "summary.csv")
    render("league.md", folder, standings=found)


def _lines(data: DataSet, each: Comparison) -> Iterator[dict[str, str]]:
    """Yield a row's values of each quantity that peers predict: measured, ours, and theirs where they are known."""
    for quantity in dict.fromkeys(peer.quantity for peer in data.peers):
        measured = each.row.measured.get(quantity)
        if measured is None:
            continue
        values: Mapping[str, float | None] = {OURS: each.prediction.values.get(quantity)} | {
            peer.name: peer.predicted(each.row) for peer in data.peers if peer.quantity == quantity and peer.value
        }
        line: dict[str, Any] = {
            "row": str(each.row.number),
            "network": each.row.network,
            "device": each.row.device,
            "batch_size": str(each.row.batch_size),
            "quantity": quantity,
            "measured_value": format_number(measured),
        }
        for name, value in values.items():
            line[f"{name}_value"] = format_number(value)
            line[f"{name}_relative_error"] = "" if value is None else f"{value / measured - 1:.4f}"
        yield line | {"fitted": "yes" if quantity in each.fitted else "no"}


def _summary(each: Standing) -> dict[str, str]:
    low, high = each.ours_interval or (None, None)
    numbers = {"ours": each.ours, "ours_low": low, "ours_high": high, "peers": each.peers}
    return {
        "dataset": each.data.name,
        "quantity": each.peer.quantity,
        "peer": each.peer.name,
        "statistic": each.peer.statistic,
        "rows": str(each.rows),
        **{name: "" if value is None else f"{value:.4f}" for name, value in numbers.items()},
        "peers_rows": "" if each.peers_rows is None else str(each.peers_rows),
        "same_rows": "yes" if each.is_same else "no",
        "ahead": each.ahead,
    }
