"""Result: what an entry of the library returns, for the terminal, a notebook, a file or another program."""

import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from importlib import import_module
from math import isfinite
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar

from membench.core.document import Element, as_html, as_markdown, as_text
from membench.core.extras import require
from membench.core.tables import as_csv
from membench.core.terminal import columns, show

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Output(StrEnum):
    """Forms in which a command prints its answer."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


class Result:
    """A result that prints itself, and goes anywhere else.

    A subclass names the modules that present it, which are imported when they are first needed: they import the class,
    and pictures need matplotlib.

    Args:
        text: module with functions of the result: `elements`, what is printed; `values`, what JSON has; `rows`, its
            table's, each with values by column.
        picture: module with `draw`, which returns the result as a figure.
    """

    text_module: ClassVar[str]
    picture_module: ClassVar[str]

    def __init_subclass__(cls, *, text: str, picture: str, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.text_module, cls.picture_module = text, picture

    def __str__(self) -> str:
        return as_text(import_module(self.text_module).elements(self), columns())

    def _repr_html_(self) -> str:
        """Return the result as a notebook shows it."""
        return as_html(import_module(self.text_module).elements(self))

    def to_dict(self) -> dict[str, Any]:
        """Return values that JSON has; units are in the names, and what is not finite is None."""
        found: dict[str, Any] = as_plain(import_module(self.text_module).values(self))
        return found

    def to_json(self, indent: int | None = 2) -> str:
        """Return `to_dict` as text."""
        return json.dumps(self.to_dict(), indent=indent)

    def to_markdown(self) -> str:
        """Return what is printed as Markdown."""
        return as_markdown(import_module(self.text_module).elements(self))

    def to_dataframe(self) -> "pd.DataFrame":
        """Return the result's table, a row for each plan, span or the like; units are in the columns' names.

        Raises:
            MembenchError: pandas is not installed.
        """
        require("dataframes", "a DataFrame")
        import pandas as pd

        return pd.DataFrame(list(import_module(self.text_module).rows(self)))

    def figure(self) -> "Figure":
        """Return the result as a picture; `Figure.savefig` writes it.

        Raises:
            MembenchError: matplotlib is not installed.
        """
        require("figures", "a picture")
        found: Figure = import_module(self.picture_module).draw(self)
        return found


def print_result(result: Result, output: Output) -> None:
    """Print a result in a form."""
    text = import_module(result.text_module)
    print_answer(output, text.elements(result), text.values(result), text.rows(result))


def print_answer(
    output: Output, elements: Iterable[Element], values: Any = None, rows: Iterable[Mapping[str, Any]] = ()
) -> None:
    """Print the answer of a command in a form.

    Args:
        elements: its text.
        values: what JSON has of it; None: the rows.
        rows: those of its table, with values by column.
    """
    rows = list(rows)
    match output:
        case Output.TEXT:
            show(elements)
            return
        case Output.JSON:
            text = json.dumps(as_plain(rows if values is None else values), indent=2)
        case Output.MARKDOWN:
            text = as_markdown(elements)
        case Output.CSV:
            text = as_csv(rows)
    print(text, flush=True)


def as_plain(value: Any) -> Any:
    """Return a value as JSON has it; what is not finite is None."""
    if isinstance(value, Mapping):
        return {str(key): as_plain(each) for key, each in value.items()}
    if isinstance(value, bool | str) or value is None:
        return str(value) if isinstance(value, StrEnum) else value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Iterable):
        return [as_plain(each) for each in value]
    return str(value)
