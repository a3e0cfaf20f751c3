"""Validation of the words that Hydra composes a configuration from, and its errors in one line."""

import re
from collections.abc import Sequence
from typing import Any

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from membench.cli.commands import COMMANDS, groups_of
from membench.cli.option_values import check_built, check_cell, check_switches
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.files import complaint
from membench.papers.cells import hydra_composition, resolved

MULTIRUN = {"-m", "--multirun"}
HYDRA_ERRORS = (HydraException, OmegaConfBaseException, YAMLError)
"""Errors of composing a configuration, which `explain` puts into one line."""


def check_arguments(arguments: Sequence[str]) -> None:
    """Compose and check every choice that the arguments of `membench run` name, once each.

    Raises:
        MembenchError: an argument is not an option, or its value is invalid; lists the valid ones in one line.
    """
    try:
        with hydra_composition():
            parsed = parse_changes([word for word in arguments if not word.startswith("-")])
            sweeps = [override for override in parsed if override.is_sweep_override()]
            if sweeps and not MULTIRUN & set(arguments):
                raise MembenchError(f"{sweeps[0].input_line!r} is a choice of several; add -m to run each")
            plain = [override.input_line or "" for override in parsed if override not in sweeps]
            _check_cell(plain)
            for sweep in sweeps:
                choices = [f"{sweep.key_or_group}={value}" for value in sweep.sweep_string_iterator()]
                if not choices:  # such as a glob that matches no name
                    raise MembenchError(f"{sweep.input_line!r} chooses nothing")
                for choice in choices:
                    _check_cell([*plain, choice])
    except (*HYDRA_ERRORS, ValueError) as error:
        raise MembenchError(explain(error, groups_of("run"))) from error


def parse_changes(words: Sequence[str]) -> list[Override]:
    """Return the words ``option=value`` as Hydra reads them; refuse others, and those that add or delete an option."""
    loader = GlobalHydra.instance().config_loader()  # it expands globs
    parsed = OverridesParser.create(loader).parse_overrides(list(words))
    for override in parsed:
        if override.type is not OverrideType.CHANGE:
            raise MembenchError(f"{override.input_line!r} is not a choice; write option=value")
    return parsed


def compose_checked(command: str, words: Sequence[str]) -> dict[str, Any]:
    """Return a sub-command's options as words change them, references to other options resolved.

    Raises:
        HydraException: a word is of an option or a file that does not exist, or is a sweep.
        MembenchError: a word is not option=value, of a group and not a name, or of true or false and neither.
    """
    overrides = parse_changes(words)
    named = [each for each in overrides if each.key_or_group in groups_of(command)]
    for group in named:  # Hydra's own error does not name the group
        if not isinstance(group.value(), str) and not group.is_sweep_override():
            raise MembenchError(_unknown(group.key_or_group, group.value()))
    composed = resolved(compose(COMMANDS[command], list(words)))
    if any("." in override.key_or_group for override in overrides):
        unchanged = compose(COMMANDS[command], [group.input_line or "" for group in named])
        check_switches(resolved(unchanged), composed)
    return composed


def explain(error: Exception, groups: Sequence[str] = ()) -> str:
    """Return one line on what is wrong with a command that has these option groups, and on what is valid."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        remedy = "; some need: pip install 'membench[launchers]'" if group == "hydra/launcher" else ""
        return _unknown(group, name) + remedy
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} is not a choice; write option=value, and quote a value with spaces or special characters"
    cause = error.__cause__
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and isinstance(cause.parent_node, DictConfig):
        options = [str(key) for key in cause.parent_node if key not in ("hydra", "_target_")]
        return f"{cause.full_key!r} is not an option; there are: {', '.join(options) or 'none'}"
    if unknown_group := re.match(r"Could not override '([^']+)'", str(error)):
        return f"{unknown_group.group(1)!r} is not an option; there are: {', '.join(groups)}"
    if not isinstance(error, HydraException | OmegaConfBaseException):
        return " ".join(complaint(error).split())
    causes = [str(each) for each in (error, cause) if each is not None]
    return "; ".join(" ".join(re.split(r"See https:|full_key:", text)[0].split()) for text in causes)


def _check_cell(words: Sequence[str]) -> None:
    """Check the cell that words without a sweep compose to."""
    values = compose_checked("run", words)
    check_cell(values)
    if changed := {word.partition(".")[0] for word in words if "." in word.partition("=")[0]} & {
        *groups_of("run")
    }:
        check_built(values, changed)


def _unknown(group: str, name: object) -> str:
    return f"{group or 'file'} {name!r} is not known; there are: {', '.join(configuration.names(group))}"
