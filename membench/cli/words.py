"""Words of a command line without Hydra: bare words, and ``name=value`` read into typed values."""

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from membench.cli.commands import NOT_TAKEN
from membench.cli.option_values import check_size
from membench.core.checks import COUNT, Requirement, check, choice, number
from membench.core.errors import MembenchError, near

Reader = Callable[[str], Any]
"""Converts the text of an option; raises MembenchError for a wrong one."""


CONFIG_DIR = "--config-dir"
_FINE_TUNING = re.compile(r"model\.(checkpointing|quantization|unquantized|lora)[.=]")


def take_config_dir(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the folder that ``--config-dir`` names, with files that add to those of ``conf/``, and the other words.

    Raises:
        MembenchError: no folder follows it.
    """
    rest, found = list(words), None
    for position, word in enumerate(rest):
        if word.partition("=")[0] == CONFIG_DIR:
            found = word.partition("=")[2] or "".join(rest[position + 1 : position + 2])
            del rest[position : position + 1 + ("=" not in word)]
            break
    if found == "" or (found and not Path(found).is_dir()):
        problem = f"{found!r} is not a folder" if found else "a folder has to follow it"
        raise MembenchError(f"{CONFIG_DIR}: {problem}; write {CONFIG_DIR} FOLDER")
    return (None if found is None else Path(found).resolve()), rest


def with_own_model(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with ``model._target_=mypackage.MyNet`` as the choice of a model that it is.

    Options of fine-tuning are of any model, and added where its file does not have them.

    Raises:
        MembenchError: they choose another model too.
    """
    words = [f"++{word}" if _FINE_TUNING.match(word) else word for word in words]
    target, chosen = (
        [word for word in words if word.partition("=")[0] == name] for name in ("model._target_", "model")
    )
    if not target:
        return list(words)
    if len(target + chosen) > 1:
        raise MembenchError(f"{' and '.join(target + chosen)} choose two models; leave one of them out")
    choices = ",".join(f"own/{name}" for name in target[0].partition("=")[2].split(","))
    return [f"model={choices}" if word in target else word for word in words]


def refuse_flags(words: Iterable[str], known: Iterable[str] = (CONFIG_DIR,)) -> None:
    """Refuse words such as ``--bogus``.

    Args:
        known: the flags of the command in addition to ``--help`` and ``--version``.
    """
    flags = [*known, "--help", "--version"]
    for word in words:
        if word.startswith("-"):
            raise MembenchError(f"{word!r} is not an option; there are: {', '.join(flags)}{near(word, flags)}")


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the bare words and the ``name=value`` words."""
    return [word for word in words if "=" not in word], [word for word in words if "=" in word]


def read_options(words: Iterable[str], readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Return the values of ``name=value`` words by name.

    Raises:
        MembenchError: a word is not of this form, its name has no reader, or its reader refuses the value.
    """
    values = {}
    for word in words:
        name, separator, text = word.partition("=")
        if not separator:
            raise MembenchError(f"{word!r} is not a choice; write option=value")
        if name not in readers:
            message = f"{name!r} is not an option; there are: {', '.join(readers)}{near(name, readers)}"
            raise MembenchError(message)
        values[name] = readers[name](text)
    return values


def take_options(words: Sequence[str], readers: Mapping[str, Reader]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of the options that have readers, and the other words; see `read_options`."""
    taken = [word for word in words if word.partition("=")[0] in readers]
    return read_options(taken, readers), [word for word in words if word not in taken]


def refuse_options(given: Container[str], command: str) -> None:
    """Refuse options that ``membench run`` has and a command does not.

    Args:
        given: names of options.
    """
    for name in NOT_TAKEN[command]:
        if name in given:
            raise MembenchError(f"{name} is not an option of {command}, but of `membench run`; leave it out")


def each(read: Reader) -> Reader:
    """Return the reader of a list separated by commas, as a tuple of what ``read`` makes of each element."""
    return lambda text: tuple(read(element) for element in text.split(",") if element)


def read_switch(name: str, text: str) -> bool:
    """Return the truth value of ``true`` or ``false``."""
    return choice(("true", "false"), name, text) == "true"


def read_number(required: Requirement, name: str, text: str) -> float:
    """Return a number that meets a requirement."""
    value = number(text)
    check(required, **{name: value if required.holds(value) else text})
    return value


def read_count(name: str, text: str) -> int:
    """Return a positive whole number."""
    return int(text) if text.isdecimal() and int(text) else int(read_number(COUNT, name, text))


def read_size(name: str, text: str) -> str:
    """Return a size in memory, ``12GB``, as it was written."""
    check_size(name, text)
    return text
