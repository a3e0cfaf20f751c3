"""Validation of option values before anything runs: an invalid one is a one-line error."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from membench.core.checks import COUNT, POSITIVE, SWITCH, WHOLE, check, choice
from membench.core.configuration import instantiate, names
from membench.core.errors import MembenchError, one_line
from membench.core.units import parse_bytes
from membench.sweep.records import Rerun

T = TypeVar("T")

Values = Mapping[str, Any]
"""A composed configuration, resolved."""

_OF_A_MODEL = ("name", "module", "loss", "input_shape", "classes")

SEEDS = range(-(2**63), 2**64)
"""The seeds that torch accepts."""


def check_running(values: Values) -> None:
    """Refuse invalid values of `conf/running.yaml` and `conf/tracking`.

    Raises:
        MembenchError: names the option, the valid values and the invalid one.
    """
    choice(Rerun, "rerun", values["rerun"])
    if values["time_limit_s"] is not None:
        check(POSITIVE, time_limit_s=values["time_limit_s"])
    check(SWITCH, dry_run=values["dry_run"], strict=values["strict"])
    tracking = values["tracking"]
    choice(names("tracking"), "tracking.mode", tracking["mode"])
    check(SWITCH, **{"tracking.cell_runs": tracking["cell_runs"]})


def check_cell(values: Values) -> None:
    """Refuse invalid values of `conf/config.yaml`.

    Raises:
        MembenchError: names the option, the valid values and the invalid one.
    """
    check(COUNT, batch_size=values["batch_size"])
    if not WHOLE.holds(values["seed"]) or values["seed"] not in SEEDS:
        raise MembenchError(f"seed is a whole number of at most 64 bits, not {values['seed']!r}")
    check(POSITIVE, timeout_s=values["timeout_s"])
    _check_planning(values)
    check_running(values)
    check_size("budget", values["budget"])
    if not isinstance(values["records"], str) or not values["records"]:
        raise MembenchError(f"records is a folder, such as outputs/records, not {values['records']!r}")
    if "study" in values and len(values["model"]["input_shape"]) != 1:
        raise MembenchError("a study encodes a map of rows; choose model=synthetic_map")
    if missing := [name for name in _OF_A_MODEL if name not in values["model"]]:
        raise MembenchError(f"model: its file in conf/model has no {', '.join(missing)}")
    for name in ("strategy", "device", "cluster", "framework"):
        if not (isinstance(values[name], Mapping) and "_target_" in values[name]):
            raise MembenchError(
                f"{name}: its file in conf/{name} has no _target_, which names the class that it describes"
            )
    for name, described in (
        ("device", values["device"]),
        ("cluster", values["cluster"]),
        ("framework.efficiency", values["framework"]["efficiency"]),
    ):
        built(name, partial(instantiate, described))


def check_size(name: str, size: Any) -> None:
    """Refuse what is not a size in memory; None means unlimited.

    Raises:
        MembenchError: shows how a size is written.
    """
    if size is None:
        return
    try:
        parse_bytes(size)
    except ValueError as error:
        raise MembenchError(f"{name}: {error}") from error


def check_switches(before: Any, after: Any, name: str = "") -> None:
    """Refuse a word where a file of `conf/` has true or false, because any non-empty word is true in Python.

    Args:
        before: a configuration from the files alone, or a value in it.
        after: the same, changed by the command line.
        name: the value's name.

    Raises:
        MembenchError: names the option.
    """
    if isinstance(before, bool):
        check(SWITCH, **{name: after})
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in before.keys() & after.keys():
            check_switches(before[key], after[key], f"{name}.{key}" if name else str(key))


def check_built(values: Values, groups: Iterable[str]) -> None:
    """Build the objects of groups whose options were changed, which may be invalid together. Imports torch (seconds).

    Raises:
        MembenchError: an object cannot be built; names the group and the cause.
    """
    from membench.sweep.cell import workload_of
    from membench.sweep.density import is_measured

    strategy = values["strategy"] | ({"density": 1.0} if is_measured(dict(values)) else {})
    makers: dict[str, Callable[[], object]] = {
        "model": lambda: workload_of({**values, "backend": {"name": "simulated"}}),
        "strategy": lambda: instantiate(strategy),
        "study": lambda: instantiate(values["study"]),
        "framework": lambda: instantiate(values["framework"]),
    }
    for group in groups:
        if group in makers:
            built(group, makers[group])


def built(name: str, make: Callable[[], T]) -> T:
    """Return the object that a group describes, as ``make`` builds it.

    Raises:
        MembenchError: it cannot be built; names the group and the cause.
    """
    try:
        return make()
    except MembenchError as error:
        raise MembenchError(f"{name}: {error}") from error
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise MembenchError(f"{name} cannot be built with these options: {one_line(error)}") from error


def _check_planning(values: Values) -> None:
    """Refuse what planning would refuse. The defaults need no check, and so no import of torch (seconds)."""
    if values["exchange"] != "as_made":
        from membench.planning.exchange import Exchange

        choice(Exchange, "exchange", values["exchange"])
    if values["micro_batch"] is not None:
        from membench.planning.micro_batch import FASTEST, FITTED, micro_batch_size

        if values["micro_batch"] not in (FITTED, FASTEST):
            given = (
                values["micro_batch"] if WHOLE.holds(values["micro_batch"]) else str(values["micro_batch"])
            )
            micro_batch_size(given, values["batch_size"])
