"""A fit as text: its residuals, and the configuration file that holds its constants."""

import re

from membench.core.errors import MembenchError
from membench.core.units import MIB
from membench.papers.calibrate.fit import Fit
from membench.papers.calibrate.least_squares import Residual


def residual_lines(result: Fit) -> list[str]:
    """Return the residuals as aligned lines of text."""
    lines = ["Table 5, seconds of 20 iterations        paper     fitted    error   left out"]
    lines += [_residual_line(residual) for residual in result.times]
    if result.memory:
        lines.append("Table 6, MB (MiB) at run time            paper     fitted    error   left out")
        lines += [_residual_line(residual) for residual in result.memory.residuals]
    return lines


def _residual_line(residual: Residual) -> str:
    name = f"{residual.row.model} on {residual.row.device}"
    numbers = f"{residual.row.value:10.3f} {residual.fitted:10.3f}"
    return f"  {name:<32} {numbers} {residual.error:+8.1%} {residual.left_out:+10.1%}"


def with_fit(text: str, result: Fit) -> str:
    """Return a configuration file's text with a fit's constants and residuals in place of its own; all else stays.

    Raises:
        MembenchError: the text has no line of a constant, or not one block of residuals.
    """
    residuals = "".join(f"# {line}\n" for line in residual_lines(result))
    text, blocks = re.subn(r"(# Table \d.*\n(#   .*\n)+)+", residuals, text)
    constants = {
        name: getattr(result.efficiency, name) for name in ("arithmetic", "memory", "launch_s", "step_s")
    }
    if memory := result.memory:
        constants["context_bytes"] = f"{memory.context_bytes}  # {memory.context_bytes / MIB:.1f} MiB"
        constants["workspace_share"] = memory.workspace_share
    for name, value in constants.items():
        text, lines = re.subn(rf"(?m)^( *{name}:) \S+(  # .* MiB)?", rf"\1 {value}", text)
        if (blocks, lines) != (1, 1):
            raise MembenchError(f"the file to fit needs one block of residuals, and one line of {name}")
    return text
