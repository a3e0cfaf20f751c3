"""Words of a command line without Hydra: bare words, and ``name=value`` read into typed values."""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from membench.cli.commands import NOT_TAKEN
from membench.cli.option_values import check_size
from membench.core import configuration
from membench.core.checks import COUNT, POSITIVE, Requirement, check, choice, number
from membench.core.errors import MembenchError, unknown
from membench.core.hardware.product import device_named
from membench.core.spelling import name_in, options_in, precision_named

Reader = Callable[[str], Any]
"""Converts the text of an option; raises MembenchError for a wrong one."""


CONFIG_DIR = "--config-dir"
FLAG = "given by a flag or a bare word"
"""Annotation of a field that is not an option."""
THIS = "this"
"""The name that stands for the GPU at hand."""
_IS_MORE_THAN_NAMES = re.compile(r"[()\[\]{}*$'\"/]|^null$")
"""In a value that is none of names alone: Hydra's functions, models of other libraries."""
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


def in_own_words(words: Sequence[str], groups: Iterable[str], own: Path | None = None) -> list[str]:
    """Return the words of a command line in membench's own: names for what people call otherwise; see `name_in`.

    ``model._target_=mypackage.MyNet`` becomes the choice of a model that it is, ``device=this`` the card at hand.
    Options of fine-tuning are of any model, and added where its file does not have them.

    Args:
        groups: those of which the command takes files.
        own: see `read_options`.

    Raises:
        MembenchError: they choose another model too; there is no card at hand.
    """
    words = [each for word in words for each in _in_own_words(word, groups, own)]
    return _with_own_model(words)


def _in_own_words(word: str, groups: Iterable[str], own: Path | None) -> Iterator[str]:
    name, _, text = word.partition("=")
    names = text.strip("\"'") if text[:1] == text[-1:] else text
    if word == f"device={THIS}":
        from membench.sweep.this_device import this_device  # asks the driver

        card = this_device()
        yield from (f"device={card.name}", f"device.memory_bytes={card.memory_bytes}")
    elif name not in {*groups, "precision"} or not names or _IS_MORE_THAN_NAMES.search(names):
        yield word
    else:
        found = [_named(name, each, own) for each in names.split(",")]
        yield word if found == names.split(",") else f"{name}={','.join(found)}"
        yield from (f"{name}.{option}={value}".lower() for option, value in options_in(name, names).items())


def _named(option: str, word: str, own: Path | None) -> str:
    if option == "precision":
        return str(precision_named(word))
    return device_named(word, own) if option == "device" else name_in(option, word, configuration.names(option, own))


def _with_own_model(words: Sequence[str]) -> list[str]:
    """Return the words with ``model._target_=mypackage.MyNet`` as the choice of a model that it is."""
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
            raise MembenchError(unknown("option", word, flags))


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the bare words and the ``name=value`` words."""
    return [word for word in words if "=" not in word], [word for word in words if "=" in word]


def read_options(words: Iterable[str], declared: type, own: Path | None = None) -> dict[str, Any]:
    """Return the values of ``name=value`` words by name.

    Args:
        declared: class with an annotation for each option; see `readers_of`.
        own: folder with files that add to those of ``conf/``.

    Raises:
        MembenchError: a word is not of this form, there is no option of its name, or the value is not one of its type.
    """
    readers, values = readers_of(declared, own), {}
    for word in words:
        name, separator, text = word.partition("=")
        if not separator:
            raise MembenchError(f"{word!r} is not a choice; write option=value")
        if name not in readers:
            raise MembenchError(unknown("option", name, readers))
        values[name] = readers[name](text)
    return values


def take_options(words: Sequence[str], declared: type, own: Path | None = None) -> tuple[dict[str, Any], list[str]]:
    """Return the values of the options that a class declares, and the other words; see `read_options`."""
    taken = [word for word in words if word.partition("=")[0] in readers_of(declared, own)]
    return read_options(taken, declared, own), [word for word in words if word not in taken]


@dataclass(frozen=True)
class NameIn:
    """Annotation of a text: the name of a file in one of the groups of ``conf/``, but for those left out.

    Attributes:
        also: other words that are allowed.
    """

    groups: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    def names(self, own: Path | None) -> list[str]:
        """Return the names, those in a folder with files of the user's own included."""
        found = (name for group in self.groups for name in configuration.names(group, own))
        return [*self.also, *(name for name in found if name not in self.left_out)]


def readers_of(declared: type, own: Path | None = None) -> dict[str, Reader]:
    """Return the reader of each option that a class declares, by the option's type.

    ``bool``, ``int`` and ``float`` are true or false, a positive whole number and a positive number; ``Literal`` and
    ``StrEnum`` one of their values; ``tuple[X, ...]`` and ``Sequence[X]`` a list separated by commas;
    ``Mapping[str, int]`` numbers of GPUs by axis. ``Annotated[X, ...]`` has what a `Requirement` or a `NameIn` allows,
    or what a function makes of the option's name and text. A field of another type, or with `FLAG`, is not an option.

    Args:
        own: see `read_options`.
    """
    hints = get_type_hints(declared, include_extras=True)
    found = {name: _reader(name, hint, own) for name, hint in hints.items() if FLAG not in get_args(hint)}
    return {name: reader for name, reader in found.items() if reader is not None}


def values_of(declared: type, name: str) -> list[str]:
    """Return the words that an option of a class can be, none where it is a number or a text; see `readers_of`."""
    return list(_words(get_type_hints(declared, include_extras=True).get(name)))


def _words(hint: Any) -> Iterator[str]:
    kind, arguments = get_origin(hint), get_args(hint)
    if kind is Annotated:
        yield from arguments[1].names(None) if isinstance(arguments[1], NameIn) else ()
    elif kind is Literal or (isinstance(hint, type) and issubclass(hint, StrEnum)):
        yield from map(str, arguments or hint)
    elif hint is bool:
        yield from _SWITCH
    else:
        yield from (word for each in arguments for word in _words(each))


def _reader(name: str, hint: Any, own: Path | None) -> Reader | None:
    kind, arguments = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return _annotated_reader(name, arguments[0], arguments[1], own)
    if kind in (Union, UnionType):  # no text stands for None
        return _reader(name, next(each for each in arguments if each is not type(None)), own)
    if kind in (tuple, Sequence):
        read = _reader(name, arguments[0], own)
        return read and partial(_read_each, read)
    if kind is Literal or (isinstance(hint, type) and issubclass(hint, StrEnum)):
        return partial(choice, arguments or hint, name)
    return partial(_PLAIN[hint], name) if hint in _PLAIN else None


def _annotated_reader(name: str, hint: Any, annotation: Any, own: Path | None) -> Reader | None:
    if isinstance(annotation, NameIn):
        return partial(_read_name, annotation, own, name)
    if isinstance(annotation, Requirement):
        return partial(_read_number, annotation, name) if float in (hint, *get_args(hint)) else _reader(name, hint, own)
    return partial(annotation, name)


def _read_name(annotation: NameIn, own: Path | None, name: str, text: str) -> str:
    known = annotation.names(own)
    return choice(known, name, name_in(annotation.groups[0], text, known))


def _read_each(read: Reader, text: str) -> tuple[Any, ...]:
    return tuple(read(element) for element in text.split(",") if element)


def read_positive(name: str, text: str) -> float:
    """Return a positive number."""
    return _read_number(POSITIVE, name, text)


def read_size(name: str, text: str) -> str:
    """Return a size in memory, ``12GB``, as it was written."""
    check_size(name, text)
    return text


def _read_number(required: Requirement, name: str, text: str) -> float:
    value = number(text)
    check(required, **{name: value if required.holds(value) else text})
    return value


def read_count(name: str, text: str) -> int:
    """Return a positive whole number."""
    return int(text) if text.isdecimal() and int(text) else int(_read_number(COUNT, name, text))


def read_sizes(name: str, text: str) -> dict[str, int]:
    """Return the sizes of axes in ``{fsdp: 8}``."""
    try:
        found = yaml.safe_load(re.sub(r"(\w):(?=\S)", r"\1: ", text))  # {fsdp:8} is a name to YAML
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict) or not all(
        isinstance(axis, str) and COUNT.holds(size) for axis, size in found.items()
    ):
        raise MembenchError(f"{name} is numbers of GPUs by axis, such as '{{fsdp: 8}}', not {text!r}")
    return found


_SWITCH = ("true", "false")
_PLAIN: dict[Any, Callable[[str, str], Any]] = {
    bool: lambda name, text: choice(_SWITCH, name, text) == "true",
    int: read_count,
    float: read_positive,
    str: lambda _, text: text,
    Path: lambda _, text: Path(text),
    Mapping[str, int]: read_sizes,
}


def refuse_options(given: Container[str], command: str) -> None:
    """Refuse options that ``membench run`` has and a command does not.

    Args:
        given: names of options.
    """
    for name in NOT_TAKEN[command]:
        if name in given:
            raise MembenchError(f"{name} is not an option of {command}, but of `membench run`; leave it out")
