"""Check an installed package that adds to membench: its files, and its strategies by the contract of ours.

    membench check my_package
    membench check my_package networks=vit,resnet18

Each strategy is run on small networks on the CPU: loss, gradients and buffers are plain PyTorch's bit for bit, also
when copies are late and freed memory is poisoned; the allocator's peak is the predicted one; nothing is copied twice; a
budget is kept or refused; a schedule is planned again as it was. Models and devices are predicted. In a clone of the
repository papers and published measurements are read, and a step of each is simulated. output=json, csv or markdown
prints the findings in that form. Exits with 1 if a check fails.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated

from membench.cli.words import FLAG, read_options, refuse_flags, split
from membench.core.configuration import IS_INSTALLED
from membench.core.document import Table
from membench.core.errors import MembenchError
from membench.core.extras import require
from membench.core.result import Output, print_answer


@dataclass(frozen=True)
class Options:
    """Options of the command.

    Attributes:
        networks: on which strategies are run; by default one of every kind.
    """

    package: Annotated[str, FLAG]
    networks: tuple[str, ...] = ()
    output: Output = Output.TEXT


def parse(words: Sequence[str]) -> Options:
    """Return the options that the words are."""
    refuse_flags(words, known=())
    bare, options = split(words)
    if not IS_INSTALLED:
        require("lab", "membench check in a clone")
    if len(bare) != 1:
        raise MembenchError("name one package, as in: membench check my_package")
    return Options(bare[0], **read_options(options, Options))


def run(options: Options) -> int:
    """Print each check, and return 1 if one of them fails."""
    from membench.conformance.networks import NETWORKS, OF_EVERY_KIND
    from membench.conformance.package import check_package
    from membench.core.checks import choice

    networks = [choice(NETWORKS, "networks", name) for name in options.networks] or OF_EVERY_KIND
    found = list(check_package(options.package, networks))
    if not IS_INSTALLED:  # the laboratory, which reads papers, is in a clone alone
        found += import_module("membench.lab.conformance").check_experiments(options.package)
    cells = [(each.file, each.what, "no" if each.broken else "yes", each.broken) for each in found]
    failed = sum(bool(each.broken) for each in found)
    print_answer(
        options.output,
        [
            Table((("file", "check", "holds", "why not"), *cells), keys=2),
            f"{len(found) - failed} checks hold, {failed} do not",
        ],
        rows=[vars(each) for each in found],
    )
    return int(failed > 0)
