"""The rows of a linear program."""

from dataclasses import dataclass, field

from scipy.sparse import coo_array


@dataclass
class Inequalities:
    """Coefficients times variables at most a limit."""

    limits: list[float] = field(default_factory=list)
    _rows: list[int] = field(default_factory=list)
    _columns: list[int] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)

    def add(self, limit: float, terms: dict[int, float]) -> None:
        self._rows += [len(self.limits)] * len(terms)
        self._columns += terms
        self._values += terms.values()
        self.limits.append(limit)

    def matrix(self, columns: int) -> coo_array:
        return coo_array((self._values, (self._rows, self._columns)), shape=(len(self.limits), columns))
