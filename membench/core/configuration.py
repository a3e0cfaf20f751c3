"""Configuration files by name, and the objects that they describe, for use without Hydra.

Hydra composes configurations on the command line; the library reads single files of the same groups.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from membench.core.errors import MembenchError, one_line, unknown
from membench.core.packages import added_folders
from membench.core.spelling import name_in, options_in
from membench.core.targets import find_object, find_target

_PACKAGE = Path(__file__).resolve().parent.parent
IS_INSTALLED = (_PACKAGE / "conf").is_dir()
"""Whether this is the package alone, whose wheel holds ``conf/`` in it, and not a checkout of the repository."""
ROOT = Path() if IS_INSTALLED else _PACKAGE.parent
"""Where ``experiments/``, ``results/`` and ``outputs/`` lie: in the checkout, or else in the current directory."""
CONF_DIRECTORY = (_PACKAGE if IS_INSTALLED else ROOT) / "conf"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML loader that reads 4.29e12 as a number, as Hydra does. PyYAML's C loader is ten times as fast."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def names(group: str, own: Path | None = None) -> list[str]:
    """Return the names of a group's files: ``names("backend") == ["cpu", "cuda", "simulated", "xpu"]``.

    Those of added packages are among them, see `membench.core.packages`.

    Args:
        own: a folder of the user's that is laid out as ``conf/`` and adds to it, from ``--config-dir``.
    """
    return sorted({path.stem for folder in _folders(own) for path in (folder / group).glob("*.yaml")})


def read(group: str, name: str, own: Path | None = None) -> dict[str, Any]:
    """Return ``conf/<group>/<name>.yaml`` as plain values, as Hydra composes it into a configuration.

    The name may be another word for it; see `name_in`.

    Its list of defaults is not part of that: Hydra follows it, and takes other groups' files by it.

    Args:
        own: see `names`; of two files of one name, that in ``conf/`` counts, then that of an added package.

    Raises:
        MembenchError: the file does not exist (the message lists those that do) or does not hold options.
    """
    known = names(group, own)
    implied, name = options_in(group, name), name_in(group, name, known)
    if name not in known:
        raise MembenchError(unknown(group, name, known))
    paths = [folder / group / f"{name}.yaml" for folder in _folders(own)]
    options = read_options(next(path for path in paths if path.exists()))
    return {key: value for key, value in options.items() if key != "defaults"} | dict(implied)


def _folders(own: Path | None) -> list[Path]:
    return [CONF_DIRECTORY, *added_folders("conf"), *([own] if own else [])]


def read_options(path: Path) -> dict[str, Any]:
    """Return a YAML file as plain values.

    Raises:
        MembenchError: the file is not YAML (with line and column), or does not hold options.
    """
    try:
        content = yaml.load(path.read_text(), _Loader)
    except yaml.YAMLError as error:
        raise MembenchError(f"{path} is not valid YAML: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise MembenchError(f"{path} has no options; write lines such as option: value")
    return content


def load(group: str, name: str) -> Any:
    """Return the object that ``conf/<group>/<name>.yaml`` describes.

    Raises:
        MembenchError: see `read` and `instantiate`.
    """
    return instantiate(read(group, name))


def instantiate(configuration: Any, kind: type = object) -> Any:
    """Call every mapping's ``_target_`` with the rest of the mapping, innermost first.

    Args:
        kind: the class of the object that the outermost mapping describes.

    Raises:
        MembenchError: a target is not known to make what is asked for, in which case none is called; or a value refers
            to another option, as ``${batch_size}`` does, which only Hydra resolves; see also `find_target`.
    """
    check_targets(configuration, kind)
    made = _called(configuration)
    if made is not None and not isinstance(made, kind):
        target = configuration.get("_target_") if isinstance(configuration, dict) else None
        raise MembenchError(
            f"{target or 'a description without _target_'} makes an object of {type(made).__name__}, not of "
            f"{kind.__name__}; name another _target_"
        )
    return made


def check_targets(configuration: Any, kind: type = object) -> None:
    """Refuse a description with a ``_target_`` that is not known to make what is asked for; call none of them.

    Raises:
        MembenchError: see `find_target`.
    """
    if isinstance(configuration, dict):
        if target := configuration.get("_target_"):
            find_target(target, kind)
        for value in configuration.values():
            check_targets(value)
    elif isinstance(configuration, list):
        for item in configuration:
            check_targets(item)


def _called(configuration: Any) -> Any:
    if isinstance(configuration, dict):
        arguments = {key: _called(value) for key, value in configuration.items() if key != "_target_"}
        target = configuration.get("_target_")
        return find_object(target)(**arguments) if target else arguments
    if isinstance(configuration, list):
        return [_called(item) for item in configuration]
    if isinstance(configuration, str) and configuration.startswith("${"):
        raise MembenchError(
            f"{configuration} refers to another option, which is set only on the command line: membench run"
        )
    return configuration


def method_of(cell: Mapping[str, Any]) -> str:
    """Return the name of a cell's strategy: that of its file in ``conf``, otherwise that of its class.

    Args:
        cell: its configuration.
    """
    target: str = cell["strategy"]["_target_"]
    return _method_names().get(target, target.rpartition(".")[2])


@cache
def _method_names() -> dict[str, str]:
    """Map each `_target_` to its configuration file's name; unreadable files are skipped."""
    found = {}
    for group in ("strategy", "baseline"):
        for name in names(group):
            with suppress(MembenchError):
                found[read(group, name).get("_target_", "")] = name
    return found
