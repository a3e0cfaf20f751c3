"""Complete commands, options and their values with the tab key, in bash, zsh and fish.

    membench completion bash    prints what bash evaluates; in ~/.bashrc: eval "$(.venv/bin/membench completion bash)"
    membench completion zsh     in ~/.zshrc, behind compinit: eval "$(.venv/bin/membench completion zsh)"
    membench completion fish    in ~/.config/fish/config.fish: source (.venv/bin/membench completion fish | psub)
    membench completion LINE    prints the words that may end a line

Commands, groups, options and the names of files are completed; also several values, as in model=vgg16,res.
"""

from collections.abc import Sequence
from importlib import import_module

from membench.cli.commands import COMMANDS, commands_here, declared_options, docstring, groups_of, module_of, options_of
from membench.cli.option_values import CHOICES
from membench.cli.words import CONFIG_DIR, values_of
from membench.core import configuration
from membench.core.checks import choice
from membench.core.errors import MembenchError

_SCRIPTS = {
    "bash": """\
_membench() {
    local IFS=$'\\n'
    COMPREPLY=($("$1" completion "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
    [[ ${COMPREPLY[0]} == *[=.] ]] && compopt -o nospace
}
complete -o default -F _membench membench
""",
    # A word ends at a space there, so that what is offered follows the word's own "option=".
    "zsh": """\
_membench() {
    local -a offered
    offered=("${(@f)$("${words[1]}" completion "$LBUFFER" 2>/dev/null)}")
    compset -P '*='
    compadd -S '' -- ${(M)offered:#*[=.]}
    compadd -- ${offered:#*[=.]}
}
compdef _membench membench
""",
    "fish": """\
function __membench
    set -l begun (string match -r '.*=' -- (commandline -ct))
    set -l words (commandline -opc)
    for word in ($words[1] completion (commandline -cp) 2>/dev/null)
        echo $begun$word
    end
end
complete -c membench -f -a '(__membench)'
""",
}


def parse(words: Sequence[str]) -> str:
    """Return the line up to the cursor, or a shell's name.

    Raises:
        MembenchError: there is no such shell, or there is another word.
    """
    if len(words) != 1:
        raise MembenchError(f"name one shell: {', '.join(_SCRIPTS)}")
    return words[0] if " " in words[0] else choice(_SCRIPTS, "the shell", words[0])


def run(line: str) -> int:
    """Print a shell's script, or the words that may end a line, and return the exit code."""
    print(_SCRIPTS.get(line) or "\n".join(completions(line)))
    return 0


def completions(line: str) -> list[str]:
    """Return what may stand for a line's last word; of ``option=value`` only the value, as bash divides words there."""
    *earlier, last = line.split(" ")[1:]
    earlier = [word for word in earlier if word]
    is_first = not earlier
    command = earlier[0] if earlier and earlier[0] in COMMANDS else "run"
    name, equals, value = last.partition("=")
    if equals:
        before, comma, begun = value.rpartition(",")
        return [f"{before}{comma}{each}" for each in _values(command, name) if each.startswith(begun)]
    groups = groups_of(command)
    words = [f"{each}=" for each in dict.fromkeys([*groups, *options_of(command), *declared_options(command)])]
    group, dot, _ = last.partition(".")
    if dot and group in groups:
        words = [f"{group}.{option}=" for option in _options_inside(group, earlier)]
    flags = [CONFIG_DIR] if CONFIG_DIR in docstring(command) else []
    words = [*(commands_here() if is_first else ()), *words, *flags, "--help", "--version"]
    return [word for word in words if word.startswith(last)]


def _values(command: str, option: str) -> list[str]:
    """Return the values that an option can have, where these are words."""
    if option in groups_of(command):
        return configuration.names(option)
    module = vars(import_module(module_of(command)))
    declared = [word for name in module if name.endswith("Options") for word in values_of(module[name], option)]
    return declared or (list(CHOICES.get(option, ())) if COMMANDS[command] else [])


def _options_inside(group: str, words: Sequence[str]) -> list[str]:
    """Return the options in the file of a group that the words choose last, or in any file."""
    chosen = [word.partition("=")[2] for word in words if word.startswith(f"{group}=")][-1:]
    files = [name for name in configuration.names(group) if name in chosen or not chosen]
    found = (key for name in files for key in configuration.read(group, name) if key != "_target_")
    return sorted(set(found))
