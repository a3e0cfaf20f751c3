"""A fit as text: its residuals, and the configuration file."""

from collections.abc import Iterator
from typing import Any

from membench.papers.calibrate.fit import Fit
from membench.papers.calibrate.least_squares import Residual
from membench.papers.calibrate.subjects import find_subject


def residual_lines(result: Fit) -> list[str]:
    """Return the residuals as aligned lines of text."""
    lines = ["Table 5, seconds of 20 iterations        paper     fitted    error   left out"]
    lines += [_residual_line(residual) for residual in result.times]
    if result.memory.residuals:
        lines.append("Table 6, MB (MiB) at run time            paper     fitted    error   left out")
    return lines + [_residual_line(residual) for residual in result.memory.residuals]


def _residual_line(residual: Residual) -> str:
    name = f"{residual.row.model} on {residual.row.device}"
    numbers = f"{residual.row.value:10.3f} {residual.fitted:10.3f}"
    return f"  {name:<32} {numbers} {residual.error:+8.1%} {residual.left_out:+10.1%}"


def yaml_text(result: Fit, *, framework: str, device: str) -> str:
    """Return the configuration file's text."""
    subject = find_subject(framework)
    efficiency = result.efficiency
    tables = "Tables 5 and 6" if result.memory.residuals else "Table 5"
    comments = [
        f"Written by: membench calibrate framework={framework} device={device}",
        f"Fitted on {subject.library.framework}'s own rows of Layrub's {tables}, and on no other system's. Residuals:",
        *residual_lines(result),
        "'left out': the error of a row under the constants that all other rows give.",
        *subject.remarks,
    ]
    return "\n".join(
        [
            *(f"# {comment}" for comment in comments),
            f"_target_: {subject.target}",
            "efficiency:",
            "  _target_: membench.core.efficiency.Efficiency",
            f"  arithmetic: {efficiency.arithmetic!r}  # of the peak arithmetic rate",
            f"  memory: {efficiency.memory!r}  # of the peak memory bandwidth",
            f"  launch_s: {efficiency.launch_s!r}  # per task",
            f"  step_s: {efficiency.step_s!r}  # per step",
            *(
                line
                for name, constant in result.memory.constants.items()
                for line in _yaml_lines(name, constant.value, f"  # {constant.comment}")
            ),
            "",
        ]
    )


def _yaml_lines(name: str, value: Any, comment: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        yield f"{name}:{comment}"
        for key, item in value.items():
            yield from (f"  {line}" for line in _yaml_lines(key, item))
    else:
        yield f"{name}: {value}{comment}"
