"""Memory of Caffe's process in addition to a network's blocks."""

from dataclasses import dataclass

from membench.core.task_graph import TaskGraph
from membench.core.units import MIB
from membench.frameworks.caffe import convolution_bytes
from membench.papers.calibrate.least_squares import Residual, four_digits, least_squares, left_out_errors
from membench.papers.calibrate.rows import BaselineRow


@dataclass(frozen=True)
class Memory:
    """Caffe's two constants of memory, its arguments of the same names, and how well each row is met."""

    context_bytes: int
    workspace_share: float
    residuals: tuple[Residual, ...]


def fit_memory(rows: list[BaselineRow], graphs: dict[str, TaskGraph]) -> Memory:
    """Fit Caffe's two constants.

    Bytes on the device = the network's blocks + context_bytes
                          + workspace_share * bytes of the convolutions' outputs
    """
    blocks = [sum(block.size_bytes for block in graphs[row.model].blocks) / MIB for row in rows]
    terms = [[1.0, convolution_bytes(graphs[row.model]) / MIB] for row in rows]
    values = [row.value for row in rows]
    rest = [value - held for value, held in zip(values, blocks, strict=True)]
    context_mib, share = (float(parameter) for parameter in least_squares(terms, rest, scale=values))
    context_bytes, workspace_share = round(context_mib * MIB), four_digits(share)
    left_out = left_out_errors(terms, rest, scale=values)
    residuals = []
    for row, held, (_, outputs), error in zip(rows, blocks, terms, left_out, strict=True):
        overhead = context_bytes / MIB + outputs * workspace_share
        residuals.append(Residual(row, held + overhead, error))
    return Memory(context_bytes, workspace_share, tuple(residuals))
