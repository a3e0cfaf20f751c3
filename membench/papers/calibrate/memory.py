"""Memory of a framework's process in addition to a network's blocks: fitted where the paper has rows, otherwise assumed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from membench.core import configuration
from membench.core.task_graph import TaskGraph
from membench.core.units import GIB, MIB
from membench.frameworks.caffe import convolution_bytes
from membench.papers.calibrate.least_squares import Residual, four_digits, least_squares, left_out_errors
from membench.papers.calibrate.rows import BaselineRow


@dataclass(frozen=True)
class Constant:
    """An argument of the framework, and its comment in the configuration file."""

    value: Any
    comment: str


@dataclass(frozen=True)
class Memory:
    """Arguments of the framework other than its efficiency, and how well each row is met."""

    constants: Mapping[str, Constant]
    residuals: tuple[Residual, ...] = ()


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
    constants = {
        "context_bytes": Constant(context_bytes, f"{context_bytes / MIB:.1f} MiB"),
        "workspace_share": Constant(workspace_share, "of each convolution's output map"),
    }
    return Memory(constants, tuple(residuals))


def assumed_memory(workspace_limit_bytes: int) -> Memory:
    """Return constants of a framework whose runtime memory the paper does not print."""
    context_bytes = configuration.read("framework", "caffe")["context_bytes"]
    rates = configuration.read("framework", "torch7")["efficiency"]["convolution"]
    autotuner = {
        "_target_": "membench.frameworks.autotuner.Autotuner",
        "limit_bytes": workspace_limit_bytes,
        "rates": rates,
    }
    return Memory(
        {
            "context_bytes": Constant(context_bytes, "assumed: Caffe's, over the same driver and cuDNN"),
            "autotuner": Constant(
                autotuner,
                f"the framework's default limit is {workspace_limit_bytes // GIB} GiB; rates as torch7's, for Layrub's "
                "cuDNN is 4, too",
            ),
        }
    )
