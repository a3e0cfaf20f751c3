"""`membench advise` on several GPUs: its options, which `membench.cli.advise` describes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from membench.advice.cluster.keywords import CombinationKeywords
from membench.cli.cluster_words import device_words
from membench.cli.command_line import compose_step
from membench.cli.words import FLAG, take_options
from membench.core.errors import MembenchError
from membench.core.graph.precision import Precision
from membench.core.record import Configuration
from membench.core.result import Output, print_result
from membench.sweep.composition import cell_configuration

if TYPE_CHECKING:
    from membench.advice.cluster.advice import ClusterAdvice

DEFAULTS = {"precision": "bf16", "optimizer": "adamw", "framework": "pytorch", "strategy": "pytorch"}
"""As large models are trained; ``optimizer=null`` leaves the update out."""

_NOT_HERE = (
    "budget",
    "channels_last",
    "holds_output",
    "host_memory",
    "largest",
    "levers",
    "methods",
    "serving",
    "time_limit",
    "tracking",
)


@dataclass(frozen=True)
class ClusterOptions:
    """What is asked.

    Attributes:
        step: the configuration of the step of one GPU.
        cluster: its name.
        ranks: `membench.advice.cluster.keywords.CombinationKeywords` that were given.
    """

    step: Annotated[Configuration, FLAG]
    cluster: Annotated[str, FLAG]
    ranks: Annotated[dict[str, Any], FLAG]
    nodes: int = 1
    output: Output = Output.TEXT
    processes: int | None = None


def parse_cluster(words: Sequence[str], own: Path | None) -> ClusterOptions:
    """Return the options that the words are.

    Args:
        own: folder with files that add to those of ``conf/``.
    """
    options, described = take_options(words, ClusterOptions)
    ranks, described = take_options(described, CombinationKeywords)
    given = {word.partition("=")[0]: word.partition("=")[2] for word in described}
    for name in _NOT_HERE:
        if name in given:
            raise MembenchError(f"{name} is not an option of advise on several GPUs")
    described = [word for word in described if not word.startswith("device=")] + device_words(given)
    step = cell_configuration(compose_step("advise", described, own, DEFAULTS))
    return ClusterOptions(step, given["cluster"], ranks, **options)


def run_cluster(options: ClusterOptions) -> int:
    """Print the advice and return the exit code."""
    advice = cluster_advice(options, progress=True)
    print_result(advice, options.output)
    return 0 if advice.fits else 2


def cluster_advice(options: ClusterOptions, *, progress: bool = False) -> "ClusterAdvice":
    """Return the advice.

    Args:
        progress: show on stderr what is done.
    """
    # torch takes seconds, which a wrong word need not wait for
    from membench.advice.cluster.rank_options import RankOptions
    from membench.advice.cluster.search import ClusterSearch
    from membench.sweep.cells.cell import Cell

    cell = Cell.from_configuration(options.step)
    workload = cell.workload(cell.batch_size)
    defaults = {"reduce_dtype": "fp32"} if workload.precision in (Precision.BF16, Precision.FP16) else {}
    of_ranks = RankOptions.of(
        replace(cell.cluster, hosts=options.nodes),
        options.cluster,
        cell.machine,
        {**defaults, "kernels": options.step.get("kernels"), **options.ranks},
    )
    search = ClusterSearch(workload, of_ranks, cell.optimizer)
    return search.advice(processes=options.processes, progress=progress)
