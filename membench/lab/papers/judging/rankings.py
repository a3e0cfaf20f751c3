"""Rankings: the orders that a paper states, pair by pair, and whether ours are the same (`rankings.yaml`).

A pair is two numbers of one quantity that differ in the method, the network, the batch size or the device alone. It
counts if the paper prints both and they are not closer than its rounding; a one-sided statement has an order with what
lies beyond it. Runs that are out of memory in the paper have no number and no order; one that is out of memory here has
none of ours and does not agree, as one that trainings leave undecided.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf, sqrt

from membench.core.record import Outcome
from membench.lab.papers.judging.numbers import Number, PaperNumbers
from membench.lab.papers.judging.scoreboard import NO_VALUE
from membench.lab.papers.judging.verdicts import AGREES, DEVIATES, Verdict
from membench.lab.papers.reading.experiment import COMPARED, Answer, Order
from membench.lab.papers.reading.printed import format_exact, format_rounded

IN_WORDS = "in words"
KINDS = (*COMPARED.values(), IN_WORDS)
CONVERSIONS: dict[str, Callable[[float], float]] = {
    "": lambda x: x,
    "100 - x": lambda x: 100 - x,
    "1 + x / 100": lambda x: 1 + x / 100,
    "1 / (1 - x / 100)": lambda x: 1 / (1 - x / 100),
}
"""Conversions of a number to the quantity of others."""
COLUMNS = (
    "quantity", "item", "compared", "kind", "point", "first", "second", "paper_first", "paper_second", "our_first",
    "our_second", "paper_order", "our_order", "agree", "agree_at_papers_largest", "margin", "fitted", "held_out",
    "choice",
)  # fmt: skip
MARGINS = {"below 2 %": 0.02, "2 to 5 %": 0.05, "5 to 10 %": 0.1, "10 % and more": inf}
"""Classes of pairs by the paper's margin, and below which one each ends."""
NO_MARGIN = "a limit, or in words"
_Z = 1.96
"""Quantile of the normal distribution for an interval of 95 %."""
_FEW = 10
"""Count of pairs below which an interval is too wide to call their order noise."""
_CLOSE = 1e-9
"""Relative difference below which the ends of two intervals are equal."""


@dataclass(frozen=True)
class Stated:
    """A number of an order.

    Attributes:
        low: the least that the paper's number can be, by its rounding or as a limit; ``high``: the most.
        ours: None: out of memory here, or undecided.
        at_papers_largest: ours at the paper's largest batch, where `ours` is at the largest here; otherwise `ours`.
    """

    number: Number
    low: float
    high: float
    is_limit: bool
    is_percentage: bool
    papers: float
    ours: float | None
    at_papers_largest: float | None


@dataclass(frozen=True)
class Agreement:
    """Counts of pairs.

    Attributes:
        opposite: those that have the other order here; the rest of the pairs that do not agree are ties, or have no
            number here.
    """

    pairs: int
    agree: int
    opposite: int

    @property
    def tau(self) -> float | None:
        """Kendall's rank correlation: agreeing minus opposite pairs over all ordered ones, None without a pair."""
        return (self.agree - self.opposite) / self.pairs if self.pairs else None

    @property
    def rounded_tau(self) -> str:
        """`tau` with two decimals, empty without a pair."""
        return "" if self.tau is None else f"{self.tau:.2f}"

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of 95 % for the share that agrees (Wilson 1927), as if the pairs were independent."""
        if not self.pairs:
            return 0.0, 1.0
        share, spread = self.agree / self.pairs, _Z**2 / self.pairs
        middle, half = share + spread / 2, sqrt(share * (1 - share) * spread + spread**2 / 4)
        return (middle - half) / (1 + spread), (middle + half) / (1 + spread)

    @property
    def reading(self) -> str:
        """``"noise"``: the interval reaches one half, so random numbers agree as well; or ``"too few"`` pairs."""
        if self.interval[0] > 0.5:
            return ""
        return "noise" if self.pairs >= _FEW else "too few"

    @property
    def count(self) -> str:
        """The count in words, ``"21 of 28"``; empty without a pair."""
        return f"{self.agree} of {self.pairs}" if self.pairs else ""

    @property
    def share(self) -> str:
        """The count and percentage, ``"21 of 28 (75 %)"``, 100 only if all agree; empty without a pair."""
        if not self.pairs:
            return ""
        percent = round(100 * self.agree / self.pairs)
        return f"{self.count} ({percent if self.agree == self.pairs else min(percent, 99)} %)"


def agreement(lines: Iterable[Mapping[str, str]]) -> Agreement:
    """Count lines of `rankings`."""
    lines = list(lines)
    opposite = sum(line["agree"] == "false" and line["our_order"] in ("<", ">") for line in lines)
    return Agreement(len(lines), sum(line["agree"] == "true" for line in lines), opposite)


def margins(lines: Iterable[Mapping[str, str]]) -> dict[str, Agreement]:
    """Count pairs by how far apart the paper's numbers are; those in words or beside a limit have no margin."""
    found: dict[str, list[Mapping[str, str]]] = {name: [] for name in (*MARGINS, NO_MARGIN)}
    for line in lines:
        margin = float(line["margin"]) if line["margin"] else None
        name = NO_MARGIN if margin is None else next(name for name, below in MARGINS.items() if margin < below)
        found[name].append(line)
    return {name: agreement(of_margin) for name, of_margin in found.items()}


def is_predicted(line: Mapping[str, str]) -> bool:
    """Return whether at least one of a pair's numbers is a prediction."""
    return line["fitted"] == line["held_out"] == "false"


def rankings(numbers: PaperNumbers) -> list[dict[str, str]]:
    """Return a line for each pair whose order the paper states, once, and for the best at each point, by `COLUMNS`."""
    answers = {row.line: answer for each in numbers.paper.experiments for row, answer in each.rows}
    lines: list[dict[str, str]] = []
    known: set[frozenset[int | None]] = set()
    for order in numbers.paper.orders:
        stated = [
            found
            for number in numbers.stated
            if order.where.matches(number.row) and (found := _stated(numbers, order, number, answers[number.row.line]))
        ]
        if order.in_words:
            lines += (_in_words(order, each) for each in stated)
            continue
        for columns in order.across:
            for point, of_point in _points(numbers, order, stated, columns).items():
                for first, second in combinations(of_point, 2):
                    pair = frozenset({first.number.row.line, second.number.row.line})
                    if pair not in known and (papers := _papers_order(first, second)):
                        known.add(pair)
                        lines.append(_pair(order, columns, point, first, second, papers))
        if order.best:
            lines += _best_at_each_point(numbers, order, stated)
    return lines


def _stated(numbers: PaperNumbers, order: Order, number: Number, answer: Answer) -> Stated | None:
    """Return a number of an order; None if the paper prints none, or if it was neither judged here nor undecided."""
    if number.row.value is None or not (number.verdict in AGREES + DEVIATES or _is_undecided(number)):
        return None
    convert = CONVERSIONS[order.convert.get(number.row.claim_id, "")]
    unit = 1.0 if order.convert else numbers.paper.units.get(number.row.unit, 1.0)
    value, half = number.row.value, 0.0 if answer.limit else number.row.half_unit
    ends = sorted(convert(end) * unit for end in (value - half, value + half))
    ours = number.entry["simulated_value"] or number.entry["measured_value"]
    other = number.entry.get("at_papers_largest") or ours
    here, there = (convert(float(each)) * unit if each not in ("", NO_VALUE) else None for each in (ours, other))
    return Stated(
        number,
        low=-inf if answer.limit == "upper" else ends[0],
        high=inf if answer.limit == "lower" else ends[1],
        is_limit=bool(answer.limit),
        is_percentage=number.row.unit == "%" and "/" not in order.convert.get(number.row.claim_id, ""),
        papers=convert(value) * unit,
        ours=here,
        at_papers_largest=there,
    )


def _is_undecided(number: Number) -> bool:
    """Return whether the interval over seeds leaves a statement open, so that it has an order and no number here."""
    return number.verdict is Verdict.IN_KIND and not number.entry["measured_value"]


def _points(
    numbers: PaperNumbers, order: Order, stated: Sequence[Stated], columns: Sequence[str]
) -> dict[str, list[Stated]]:
    """Return by other columns the numbers that differ in some only, without the paper's usual device."""
    points: dict[str, list[Stated]] = {}
    for each in stated:
        row = each.number.row
        names = {"model": row.model, "batch_size": f"batch {row.batch_size}" if row.batch_size else ""}
        names |= {"device": "" if row.device == numbers.paper.device else row.device, "system": row.system}
        within = getattr(row, order.within) if order.within else ""
        point = ", ".join(filter(None, (*(name for column, name in names.items() if column not in columns), within)))
        points.setdefault(point, []).append(each)
    return points


def _papers_order(first: Stated, second: Stated) -> str:
    """Return ``<`` or ``>``; empty if the paper's numbers are closer than its rounding."""
    with_limit = first.is_limit or second.is_limit
    for one, other, sign in ((first, second, "<"), (second, first, ">")):
        high = one.papers if with_limit and not one.is_limit else one.high
        low = other.papers if with_limit and not other.is_limit else other.low
        if high <= low + _CLOSE * abs(low):
            return sign
    return ""


def _our_order(first: float | None, second: float | None) -> str:
    if first is None or second is None:
        return ""
    return "<" if first < second else ">" if first > second else "="


def _pair(
    order: Order, columns: Sequence[str], point: str, first: Stated, second: Stated, papers: str
) -> dict[str, str]:
    names = [_name(each.number, columns) for each in (first, second)]
    ours = _our_order(first.ours, second.ours)
    line = _line(order, COMPARED[columns[0]], "pair", point, names, (first, second), (papers, ours))
    there = _our_order(first.at_papers_largest, second.at_papers_largest)
    return line | {"agree_at_papers_largest": str(papers == there).lower()}


def _best_at_each_point(numbers: PaperNumbers, order: Order, stated: Sequence[Stated]) -> Iterator[dict[str, str]]:
    """Yield a line for each point with a best number: the paper's best is the first, ours the second."""
    columns, sign = order.across[0], 1 if order.best == "lower" else -1
    for point, of_point in _points(numbers, order, stated, columns).items():
        ranked = sorted((each for each in of_point if not each.is_limit), key=lambda each: sign * each.papers)
        if len(ranked) < 2 or not _papers_order(*ranked[:2]):
            continue
        ran = [each for each in ranked if each.ours is not None]
        best = min(ran, key=lambda each: sign * (each.ours or 0), default=ranked[0])
        names = [_name(each.number, columns) for each in (ranked[0], best)]
        same = "=" if ran and best is ranked[0] else ""
        line = _line(order, COMPARED[columns[0]], "best", point, names, (ranked[0], best), ("=", same))
        yield line | {"margin": _margin(*ranked[:2])} | _standing(ranked)


def _in_words(order: Order, stated: Stated) -> dict[str, str]:
    papers = ">" if order.in_words == "above 1" else "<"
    ours = _our_order(stated.ours, 1.0)
    line = _line(order, IN_WORDS, "pair", "", [stated.number.row.system, "1"], (stated, stated), (papers, ours))
    return line | {"paper_second": "1", "our_second": "1", "paper_first": order.in_words, "margin": ""}


def _line(
    order: Order,
    compared: str,
    kind: str,
    point: str,
    names: Sequence[str],
    pair: tuple[Stated, Stated],
    orders: tuple[str, str],
) -> dict[str, str]:
    values = {}
    for place, each in zip(("first", "second"), pair, strict=True):
        entry = each.number.entry
        ours = entry["simulated_value"] or entry["measured_value"]
        limit = "" if not each.is_limit else "more than " if each.high == inf else "less than "
        values[f"paper_{place}"] = limit + format_exact(entry["paper_value"], entry["unit"])
        without = "undecided" if _is_undecided(each.number) else str(Outcome.OUT_OF_MEMORY).replace("_", " ")
        values[f"our_{place}"] = format_rounded(ours, entry["unit"]) or without
    line = {
        "quantity": order.quantity, "item": pair[0].number.row.item, "compared": compared, "kind": kind, "point": point,
        "first": names[0], "second": names[1], **values, "paper_order": orders[0], "our_order": orders[1],
        "agree": str(orders[0] == orders[1]).lower(), "margin": _margin(*pair), **_standing(pair),
    }  # fmt: skip
    return {name: line.get(name, line["agree"]) for name in COLUMNS}


def _margin(first: Stated, second: Stated) -> str:
    """Return how far apart the paper's numbers are: percentages in points, others over the larger; none by a limit."""
    larger = 100.0 if first.is_percentage and second.is_percentage else max(abs(first.papers), abs(second.papers))
    if first.is_limit or second.is_limit or not larger:
        return ""
    return f"{abs(first.papers - second.papers) / larger:.4f}"


def _standing(stated: Sequence[Stated]) -> dict[str, str]:
    """Return the columns on what a pair proves: it is fitted or held out only if all its numbers are."""
    of_numbers = [each.number.standing for each in stated]
    fitted = all(standing.fitted for standing in of_numbers)
    held_out = not fitted and not any(standing.is_predicted for standing in of_numbers)
    choices = dict.fromkeys(choice for standing in of_numbers for choice in standing.choices)
    return {"fitted": str(fitted).lower(), "held_out": str(held_out).lower(), "choice": "; ".join(choices)}


def _name(number: Number, columns: Sequence[str]) -> str:
    """Return what a number is of, as far as it differs from the other of its pair."""
    row = number.row
    words = {
        "model": row.model,
        "batch_size": f"batch {row.batch_size}" if row.batch_size else "",
        "device": row.device,
    }
    words |= {"system": row.system}
    return ", ".join(words[name] for name in COMPARED if name in columns and words[name])
