"""The sub-commands of `membench`: their configuration files and their help, for which none of them is imported."""

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from membench.core import configuration
from membench.core.configuration import IS_INSTALLED
from membench.core.document import Code, Element, Facts
from membench.core.errors import MembenchError

COMMANDS = {
    "run": "config",
    "predict": "config",
    "advise": "config",
    "app": None,
    "train": "train",
    "measure": None,
    "reproduce": "reproduce",
    "report": None,
    "timeline": "config",
    "frontier": "config",
    "validate": None,
    "fit": None,
    "bench": None,
    "calibrate": None,
    "check": None,
    "completion": None,
}
"""The file in `conf/` with each sub-command's options; None where the sub-command's module declares them."""

LABORATORY = ("train", "reproduce", "validate", "fit")
"""Those of `membench.lab`, which only a clone of the repository has."""

LABORATORY_COMMANDS = "membench.lab.cli"
"""The package of their modules."""

_PAPER = "paper="
"""Begins the word by which `run` is of a paper."""
_OF_SWEEPS = ("dry_run", "metrics", "objective", "output", "paper", "records", "strict", "time_limit_s")
_OF_PLANS = (*_OF_SWEEPS, "backend", "exchange", "framework", "micro_batch", "timeout_s")
NOT_TAKEN = {
    "predict": (*_OF_PLANS, "rerun", "tracking"),
    "advise": (*_OF_PLANS, "rerun", "strategy"),
    "timeline": (*_OF_SWEEPS, "rerun", "tracking"),
    "frontier": (*_OF_PLANS, "budget", "cluster", "parallel", "strategy", "tracking"),
}
"""Options that a sub-command sets itself or has no use for: its help leaves them out, and it refuses them."""

_OPTION_WIDTH, _WIDEST_NAME = 22, 28
"""Characters of the column of options in a help."""


def module_of(command: str, words: Sequence[str] = ()) -> str:
    """Return the name of the module that parses and runs a sub-command with these words.

    Raises:
        MembenchError: membench is installed, and the sub-command needs a clone of the repository.
    """
    is_of_paper = command == "run" and any(word.startswith(_PAPER) for word in words)
    is_of_papers = command == "report" and not (IS_INSTALLED or _names_records(words))
    if not (command in LABORATORY or is_of_paper or is_of_papers):
        return f"membench.cli.{command}"
    if IS_INSTALLED:
        raise MembenchError("this command reads papers and published measurements; run it in a clone of the repository")
    return f"{LABORATORY_COMMANDS}.{command}"


def _names_records(words: Sequence[str]) -> bool:
    """Return whether words of `membench report` are of records, and not of what is committed on papers."""
    bare = [word for word in words if "=" not in word]
    return bare[:1] == ["sweep"] or (bare[:1] == ["compare"] and not any(map(_is_scoreboard, map(Path, bare[1:]))))


def _is_scoreboard(path: Path) -> bool:
    return path.is_file() or any(path.glob("scoreboard.csv")) or any(path.glob("*/scoreboard.csv"))


def commands_here() -> list[str]:
    """Return the names of the sub-commands that can run: all, or where membench is installed those of the library."""
    return [name for name in COMMANDS if not (IS_INSTALLED and name in LABORATORY)]


def groups_of(command: str) -> tuple[str, ...]:
    """Return the option groups of a sub-command: those options whose values are names of files in `conf/<group>`."""
    config = COMMANDS.get(command)
    defaults = configuration.read_options(_file(config))["defaults"] if config else []
    keys = (key for entry in defaults if isinstance(entry, dict) for key in entry if key.isidentifier())
    return tuple(key for key in keys if key not in NOT_TAKEN.get(command, ()))


def overview() -> list[Element]:
    """Return the help of `membench` itself: its sub-commands."""
    firsts = ((command, docstring(command).splitlines()[0]) for command in commands_here())
    return [
        "Memory-saving methods for deep learning: simulated, measured, and compared with their papers.",
        "",
        Facts(tuple(firsts), width=max(map(len, COMMANDS)) + 1),
        "",
        "`membench COMMAND --help` shows a command's options. Options without a command are those of `run`.",
    ]


def command_help(command: str) -> list[Element]:
    """Return the help of a sub-command: its description, then its options with their defaults."""
    description = described(command)
    if COMMANDS[command] is None:
        return description
    groups = (f"  {group}: {', '.join(configuration.names(group))}" for group in groups_of(command))
    options = (_option(line) for line in option_lines(command))
    facts = Facts(tuple(options), width=_OPTION_WIDTH)
    return [*description, "", "Groups and their choices:", *groups, "", "Options and their defaults:", facts]


def _option(line: str) -> tuple[str, str]:
    """Return an option with its default, and its description."""
    setting, _, description = line.partition("#")
    name, _, default = setting.partition(":")
    value = default.strip()
    return (name if value in ("null", "") or "$" in value else f"{name}={value}"), description.strip()


def described(command: str) -> list[Element]:
    """Return what a sub-command does: its module's docstring."""
    return list(_described(docstring(command)))[:-1]


def _described(text: str) -> Iterator[Element]:
    """Yield a docstring as elements: paragraphs, commands, and options with what follows them behind two spaces."""
    for paragraph in text.split("\n\n"):
        entries: list[str] = []
        for line in paragraph.splitlines():
            if re.match(r" {4}\S", line) or not entries:
                entries.append(line.strip() if line.startswith("    ") else line)
            else:
                entries[-1] += f" {line.strip()}"
        yield from _entries(entries) if paragraph.startswith("    ") else entries
        yield ""


def _entries(entries: Sequence[str]) -> Iterator[Element]:
    """Yield commands and options; what stands next to several of them begins in one column."""
    pairs = [[*re.split(r" {2,}", entry, maxsplit=1), ""][:2] for entry in entries]
    widest = max(len(name) for name, _ in pairs)
    if entries[0].startswith(("membench ", "torchrun ")):
        yield Code(tuple(f"{name:<{widest}}  # {text}" if text else name for name, text in pairs), is_shell=True)
    else:
        yield Facts(tuple((name, text) for name, text in pairs), width=min(widest, _WIDEST_NAME) + 1)


def options_of(command: str) -> list[str]:
    """Return the names of a sub-command's options, those of `groups_of` excluded."""
    if COMMANDS[command] is not None:
        return [line.partition(":")[0] for line in option_lines(command)]
    return declared_options(command)


def declared_options(command: str) -> list[str]:
    """Return the names of the options that a sub-command's module declares."""
    classes = [node for node in _syntax(command).body if isinstance(node, ast.ClassDef)]
    declared = [node for node in classes if node.name.endswith("Options")]
    fields = [field for node in declared for field in node.body if isinstance(field, ast.AnnAssign)]
    read = [field.target for field in fields if "FLAG" not in ast.unparse(field.annotation)]  # see `words.readers_of`
    return [target.id for target in read if isinstance(target, ast.Name)]


def option_lines(command: str) -> list[str]:
    """Return a line for each option in a sub-command's file: its name, its default and its description."""
    config = COMMANDS[command]
    text = _file(config).read_text() if config else ""
    text += _file("running").read_text() if "running@_here_" in text else ""
    lines = re.findall(r"^\w+: .+", text, re.MULTILINE)
    return [line for line in lines if line.partition(":")[0] not in NOT_TAKEN.get(command, ())]


def docstring(command: str) -> str:
    """Return the first part of a sub-command's help: its module's docstring."""
    return ast.get_docstring(_syntax(command)) or ""


def _syntax(command: str) -> ast.Module:
    folder, _, name = module_of(command).removeprefix("membench.").rpartition(".")
    return ast.parse((Path(__file__).parents[1] / folder.replace(".", "/") / f"{name}.py").read_text())


def _file(config: str) -> Path:
    return configuration.CONF_DIRECTORY / f"{config}.yaml"
