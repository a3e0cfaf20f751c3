"""The command line's words, checked before anything runs: a wrong one is answered in one line."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from membench import configuration
from membench.errors import MembenchError
from membench.suite.composition import hydra_composition
from membench.suite.records import Rerun
from membench.units import parse_bytes

GROUPS = ("model", "strategy", "study", "device", "cluster", "framework", "backend", "tracking")


def check_arguments(arguments: Sequence[str]) -> None:
    """Compose every choice that the arguments name, once each.

    Raises:
        MembenchError: an argument is no option, or its value is none; says in one line what there is.
    """
    words = [word for word in arguments if not word.startswith("-")]
    try:
        parsed = parse_changes(words)
        with hydra_composition():
            plain = [override.input_line or "" for override in parsed if not override.is_sweep_override()]
            _check_values(compose("config", plain))
            for choice in (choice for override in parsed for choice in _choices(override)):
                _check_values(compose("config", [*plain, choice]))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise MembenchError(explain(error)) from error


def parse_changes(words: Sequence[str]) -> list[Override]:
    """Return the words ``option=value`` as Hydra reads them.

    Raises:
        HydraException: a word is no override.
        MembenchError: it adds or deletes an option.
    """
    parsed = OverridesParser.create().parse_overrides(list(words))
    for override in parsed:
        if override.type is not OverrideType.CHANGE:
            raise MembenchError(f"{override.input_line!r} is no choice; write option=value")
    return parsed


def explain(error: Exception, groups: Sequence[str] = GROUPS) -> str:
    """Return one line that says what was wrong with the command and what there is.

    Args:
        groups: those that the command's configuration is composed from.
    """
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        known = f"{group} {name!r} is not known; there are: {', '.join(configuration.names(group))}"
        return (
            known if group != "hydra/launcher" else f"{known}; some need: pip install 'membench[launchers]'"
        )
    cause = error.__cause__
    if isinstance(cause, OmegaConfBaseException) and isinstance(cause.parent_node, DictConfig):
        options = [str(key) for key in cause.parent_node if key not in ("hydra", "_target_")]
        return f"{cause.full_key!r} is not an option; there are: {', '.join(options) or 'none'}"
    unknown_group = re.match(r"Could not override '([^']+)'", str(error))
    if unknown_group:
        return f"{unknown_group.group(1)!r} is not an option; there are: {', '.join(groups)}"
    return " ".join(str(error).partition("See https:")[0].split())


def check_running(settings: Mapping[str, Any]) -> None:
    """Refuse values that `conf/running.yaml` does not allow.

    Raises:
        MembenchError: says what it allows.
    """
    rerun, time_limit_s = settings["rerun"], settings["time_limit_s"]
    if rerun not in list(Rerun):
        raise MembenchError(f"rerun is one of {', '.join(Rerun)}, not {rerun!r}")
    if time_limit_s is not None and not (isinstance(time_limit_s, int | float) and time_limit_s > 0):
        raise MembenchError(
            f"time_limit_s is a positive number of seconds, or null for no limit, not {time_limit_s!r}"
        )
    for switch in ("dry_run", "strict"):
        if not isinstance(settings[switch], bool):
            raise MembenchError(f"{switch} is true or false, not {settings[switch]!r}")


def _choices(override: Override) -> list[str]:
    if not override.is_sweep_override():
        return []
    return [f"{override.key_or_group}={value}" for value in override.sweep_string_iterator()]


def _check_values(config: DictConfig) -> None:
    """Refuse numbers that no run can have."""
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    batch_size, seed = values["batch_size"], values["seed"]
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise MembenchError(f"batch_size is a positive number of images, not {batch_size!r}")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise MembenchError(f"seed is a whole number, not {seed!r}")
    _check_planning(values)
    timeout_s = values["timeout_s"]
    if not isinstance(timeout_s, int | float) or timeout_s <= 0:
        raise MembenchError(f"timeout_s is a positive number of seconds, not {timeout_s!r}")
    check_running({str(key): value for key, value in values.items()})
    if values["budget"] is not None:
        try:
            parse_bytes(values["budget"])
        except ValueError as error:
            raise MembenchError(f"budget: {error}") from error


def _check_planning(values: Mapping[Any, Any]) -> None:
    """Refuse what planning would; planning takes torch, seconds that the defaults need not."""
    if values["exchange"] != "as_made":
        from membench.planning.exchange import find_exchange

        find_exchange(values["exchange"])
    if values["sub_batch"] is not None:
        from membench.planning.sub_batch import FASTEST, FITTED, sub_batch_size

        if values["sub_batch"] not in (FITTED, FASTEST):
            sub_batch_size(values["sub_batch"], values["batch_size"])
