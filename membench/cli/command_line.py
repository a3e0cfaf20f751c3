"""Validation of the words that Hydra composes a configuration from, and its errors in one line."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, OverrideType
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from membench.cli.commands import COMMANDS, groups_of, options_of
from membench.cli.option_values import LARGE_BATCH, check_built, check_cell, check_switches
from membench.cli.words import in_own_words, refuse_flags, refuse_options, take_config_dir
from membench.core import configuration
from membench.core.checks import SWITCH, check
from membench.core.errors import MembenchError, listed, near, unknown
from membench.core.files import complaint
from membench.core.record import LARGEST
from membench.profiling.nvml import visible_gpus
from membench.sweep.composition import hydra_composition, resolved
from membench.sweep.results.provenance import device_facts_from_outside

MULTIRUN = {"-m", "--multirun"}
HYDRA_ERRORS = (HydraException, OmegaConfBaseException, YAMLError)
"""Errors of composing a configuration, which `explain` puts into one line."""


def words_of_one_step(words: Sequence[str], reason: str) -> tuple[Path | None, list[str]]:
    """Return the folder that ``--config-dir`` names, and the words of a command that takes one step and no other flag.

    Args:
        reason: why there is one step alone.
    """
    own, words = take_config_dir(words)
    if MULTIRUN & set(words):
        raise MembenchError(f"-m is not an option; {reason}")
    refuse_flags(words)
    return own, in_own_words(words, groups_of("run"), own)


def compose_step(command: str, words: Sequence[str], own: Path | None, defaults: Mapping[str, str]) -> DictConfig:
    """Return the configuration of the step that the words of a command describe.

    Args:
        own: see `hydra_composition`.
        defaults: values of options that are not given, where they differ from those of `membench run`.

    Raises:
        MembenchError: the command does not take an option; see also `check_arguments`.
    """
    given = {word.partition("=")[0] for word in words}
    refuse_options(given, command)
    words = [*words, *(f"{name}={value}" for name, value in defaults.items() if name not in given)]
    composed = check_arguments(words, own)
    if composed.batch_size == LARGEST:
        raise MembenchError(
            f"batch_size={LARGEST} is of `membench run`, which searches for it; {command} takes a number"
        )
    return composed


def check_arguments(arguments: Sequence[str], own: Path | None = None) -> DictConfig:
    """Compose and check every choice that the arguments of `membench run` name, once each.

    Args:
        own: see `hydra_composition`.

    Returns:
        The composed configuration of the first cell.

    Raises:
        MembenchError: an argument is not an option, or its value is invalid; lists the valid ones in one line. Or it is
            to be measured here on a GPU, and there is none.
    """
    try:
        with hydra_composition(own):
            parsed = parse_changes([word for word in arguments if not word.startswith("-")])
            sweeps = [override for override in parsed if override.is_sweep_override()]
            if sweeps and not MULTIRUN & set(arguments):
                raise MembenchError(f"{sweeps[0].input_line!r} is a choice of several; add -m to run each")
            plain = [override.input_line or "" for override in parsed if override not in sweeps]
            choices = [_choices(sweep) for sweep in sweeps]
            firsts = [of_sweep[0] for of_sweep in choices]
            first, values = _check_cell([*plain, *firsts], [*plain, *firsts], own)
            cells = [values]
            for place, of_sweep in enumerate(choices):
                others = [*plain, *firsts[:place], *firsts[place + 1 :]]
                cells += [_check_cell([*others, choice], [choice], own)[1] for choice in of_sweep[1:]]
    except (*HYDRA_ERRORS, ValueError) as error:
        raise MembenchError(explain(error, "run")) from error
    is_here = not any(override.key_or_group == "hydra/launcher" for override in parsed)
    if is_here and any(cell["backend"]["name"] == "cuda" and not cell["dry_run"] for cell in cells):
        check_gpu()
    return first


def _choices(sweep: Override) -> list[str]:
    """Return the words of a sweep's choices; of an interval, in which a sweeper searches, those of its ends.

    Raises:
        MembenchError: it has none, such as a glob that matches no name.
    """
    if isinstance(interval := sweep.value(), IntervalSweep):
        return [f"{sweep.key_or_group}={end}" for end in (interval.start, interval.end)]
    found = [f"{sweep.key_or_group}={value}" for value in sweep.sweep_string_iterator()]
    if not found:
        raise MembenchError(f"{sweep.input_line!r} chooses nothing")
    return found


def parse_changes(words: Sequence[str]) -> list[Override]:
    """Return the words ``option=value`` as Hydra reads them; refuse others, and those that add or delete an option."""
    loader = GlobalHydra.instance().config_loader()  # it expands globs
    parsed = OverridesParser.create(loader).parse_overrides(list(words))
    for override in parsed:
        if override.type is OverrideType.FORCE_ADD and str(override.key_or_group).startswith("model."):
            continue  # of fine-tuning, see `in_own_words`
        if override.type is not OverrideType.CHANGE:
            raise MembenchError(f"{override.input_line!r} is not a choice; write option=value")
        if override.key_or_group == "hydra.verbose":
            check(SWITCH, **{"hydra.verbose": override.value()})
    return parsed


def compose_checked(command: str, words: Sequence[str]) -> dict[str, Any]:
    """Return a sub-command's options as words change them, references to other options resolved.

    Raises:
        MembenchError: a word is of an option or a file that does not exist, is a sweep, is not option=value, of a group
            and not a name, or of true or false and neither.
    """
    try:
        return _compose_checked(command, words)[1]
    except HYDRA_ERRORS as error:
        raise MembenchError(explain(error, command)) from error


def _compose_checked(command: str, words: Sequence[str]) -> tuple[DictConfig, dict[str, Any]]:
    overrides = parse_changes(words)
    named = [each for each in overrides if each.key_or_group in groups_of(command)]
    for group in named:  # Hydra's own error does not name the group
        if not isinstance(group.value(), str) and not group.is_sweep_override():
            known = GlobalHydra.instance().config_loader().get_group_options(group.key_or_group)
            raise MembenchError(unknown(group.key_or_group, group.value(), known))
    composed = compose(COMMANDS[command], list(words))
    values = resolved(composed)
    if any("." in override.key_or_group for override in overrides):
        unchanged = compose(COMMANDS[command], [group.input_line or "" for group in named])
        check_switches(resolved(unchanged), values)
    return composed, values


def explain(error: Exception, command: str) -> str:
    """Return one line on what is wrong with the words of a command, and on what is valid."""
    groups = groups_of(command)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        remedy = "; some need: pip install 'membench[launchers]'" if group == "hydra/launcher" else ""
        return unknown(group or "file", name, error.options or []) + remedy
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} is not a choice; write option=value{_quoted(str(error.override))}"
    cause = error.__cause__
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and isinstance(cause.parent_node, DictConfig):
        return _not_an_option(str(cause.full_key), list(cause.parent_node), command)
    if unknown_group := re.match(r"Could not override '([^']+)'", str(error)):
        name = unknown_group.group(1)
        return unknown("option", name, groups)
    missing = re.match(r"Interpolation key '(\w+)\.(\w+)' not found", str(error))
    if missing and missing.group(1) in groups:
        group, key = missing.groups()
        return f"{group}: its file in conf/{group} has no {key}; add it there, or give {key}=..."
    if not isinstance(error, HydraException | OmegaConfBaseException):
        return " ".join(complaint(error).split())
    causes = [str(each) for each in (error, cause) if each is not None]
    return "; ".join(" ".join(re.split(r"See https:|full_key:", text)[0].split()) for text in causes)


def _quoted(word: str) -> str:
    """Return how the shell and Hydra's grammar, each with quotes of its own, read a value with special characters."""
    name, _, value = word.partition("=")
    if not value or "'" in value:
        return ", and quote a value with spaces or special characters twice, such as 'records=\"a b\"'"
    return f"""; a value with spaces or special characters is quoted twice: '{name}="{value}"'"""


def check_gpu() -> None:
    """Refuse a machine without a GPU that torch can use.

    Raises:
        MembenchError: it is one.
    """
    if not visible_gpus():  # the driver's library answers at once; torch, which decides, takes seconds
        device_facts_from_outside("cuda")


def _check_cell(words: Sequence[str], new: Sequence[str], own: Path | None) -> tuple[DictConfig, dict[str, Any]]:
    """Check the cell that words without a sweep compose to, and return its configuration and values.

    Groups whose options are changed are built, and those of which a file is chosen that is not of ``conf/``.

    Args:
        new: the words whose groups are not yet checked.
    """
    composed, values = _compose_checked("run", words)
    check_cell(values)
    options = [word.partition("=") for word in new]
    changed = {name.strip("+").partition(".")[0] for name, _, _ in options if "." in name}
    changed |= {
        name
        for name, _, chosen in options
        if own and name in groups_of("run") and chosen not in configuration.names(name)
    }
    if values["batch_size"] != LARGEST and values["batch_size"] > LARGE_BATCH:
        changed.add("model")
    if built := changed & {*groups_of("run")}:
        check_built(values, built)
    return composed, values


def _not_an_option(name: str, options: Sequence[object], command: str) -> str:
    """Return what is wrong with an option's name, and where there is one of that name or of one like it."""
    groups = groups_of(command)
    known = sorted((str(key) for key in options if key not in ("hydra", "_target_")), key=lambda key: key not in groups)
    group, _, key = name.rpartition(".")
    if not group:  # those without a choice are not in the configuration
        known = list(dict.fromkeys([*groups, *known]))
    suggestion, having = near(key, known), list[str]()
    if not suggestion and group in groups:
        files = configuration.names(group)
        having = [file for file in files if key in configuration.read(group, file)]
        top_level = [*groups, *options_of(command)]
        suggestion = f"; {', '.join(having)} have it" if having else near(key, top_level)
    end = ";" if not suggestion or having else ""
    return f"option {name!r} is not known{suggestion}{end} {'there' if end else 'There'} are: {listed(known)}"
