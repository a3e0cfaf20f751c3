"""The values of a command's options, checked before anything runs: what no run can have is refused in one line."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from membench.core.checks import COUNT, POSITIVE, SWITCH, WHOLE, check, choice
from membench.core.configuration import find_function, instantiate, names
from membench.core.errors import MembenchError, one_line
from membench.core.units import parse_bytes
from membench.sweep.records import Rerun

T = TypeVar("T")

Values = Mapping[str, Any]
"""A composed configuration, resolved."""

_OF_A_MODEL = ("name", "module", "loss", "input_shape", "classes")

SEEDS = range(-(2**63), 2**64)
"""Those that torch takes."""


def check_running(values: Values) -> None:
    """Refuse values that `conf/running.yaml` and `conf/tracking` do not allow.

    Raises:
        MembenchError: says what it allows.
    """
    choice(Rerun, "rerun", values["rerun"])
    if values["time_limit_s"] is not None and not POSITIVE.holds(values["time_limit_s"]):
        raise MembenchError(
            f"time_limit_s is a positive number of seconds, or null for no limit, not {values['time_limit_s']!r}"
        )
    check(SWITCH, dry_run=values["dry_run"], strict=values["strict"])
    tracking = values["tracking"]
    choice(names("tracking"), "tracking.mode", tracking["mode"])
    check(SWITCH, **{"tracking.cell_runs": tracking["cell_runs"]})


def check_cell(values: Values) -> None:
    """Refuse values of `conf/config.yaml` that no cell can have.

    Raises:
        MembenchError: says what a value has to be.
    """
    if not COUNT.holds(values["batch_size"]):
        raise MembenchError(f"batch_size is a positive number of images, not {values['batch_size']!r}")
    if not WHOLE.holds(values["seed"]) or values["seed"] not in SEEDS:
        raise MembenchError(f"seed is a whole number of at most 64 bits, not {values['seed']!r}")
    check(POSITIVE, timeout_s=values["timeout_s"])
    _check_planning(values)
    check_running(values)
    check_size("budget", values["budget"])
    if not isinstance(values["records"], str) or not values["records"]:
        raise MembenchError(f"records is a folder, such as outputs/records, not {values['records']!r}")
    if values["metrics"] is not None:
        find_function(str(values["metrics"]))
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
    """Refuse what is no size in memory; None is no limit.

    Raises:
        MembenchError: says how one is written.
    """
    if size is None:
        return
    try:
        parse_bytes(size)
    except ValueError as error:
        raise MembenchError(f"{name}: {error}") from error


def check_switches(before: Any, after: Any, name: str = "") -> None:
    """Refuse a word where a file of `conf/` has true or false: every word would count as true.

    Args:
        before: a configuration as its files have it, or a value in it.
        after: the same with what the command line changes.
        name: of the value.

    Raises:
        MembenchError: names the option.
    """
    if isinstance(before, bool):
        check(SWITCH, **{name: after})
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in before.keys() & after.keys():
            check_switches(before[key], after[key], f"{name}.{key}" if name else str(key))


def check_built(values: Values, groups: Iterable[str]) -> None:
    """Build what groups describe whose options were changed: together they may describe nothing. Takes torch, seconds.

    Raises:
        MembenchError: says what stood against it.
    """
    from membench.sweep.method import Method
    from membench.sweep.model import Model

    method, batch_size, seed = Method(values["strategy"]), values["batch_size"], values["seed"]
    makers: dict[str, Callable[[], object]] = {
        "model": lambda: Model.from_configuration(values["model"]).workload(
            batch_size, seed=seed, device="meta"
        ),
        "strategy": lambda: method.strategy(**({"density": 1.0} if method.measures_density else {})),
        "framework": lambda: instantiate(values["framework"]),
    }
    for group in groups:
        if group in makers:
            built(group, makers[group])


def built(name: str, make: Callable[[], T]) -> T:
    """Return what a group describes.

    Raises:
        MembenchError: it cannot be built; says what stood against it.
    """
    try:
        return make()
    except MembenchError as error:
        raise MembenchError(f"{name}: {error}") from error
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise MembenchError(f"{name} cannot be built with these options: {one_line(error)}") from error


def _check_planning(values: Values) -> None:
    """Refuse what planning would; planning takes torch, seconds that the defaults need not."""
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
