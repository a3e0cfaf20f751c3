"""`membench advise` on several GPUs: its options, which `membench.cli.advise` describes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hydra import compose

from membench.cli.cluster_words import device_words
from membench.cli.command_line import check_arguments
from membench.cli.predict import read_parallel
from membench.cli.words import Reader, each, read_count, refuse_options, take_config_dir, take_options, with_own_model
from membench.core.checks import choice
from membench.core.errors import MembenchError
from membench.core.graph.precision import Precision
from membench.core.record import Configuration
from membench.sweep.composition import cell_configuration, hydra_composition

DEFAULTS = {"precision": "bf16", "optimizer": "adamw"}
"""As large models are trained; ``optimizer=null`` leaves the update out."""

_CHECKPOINTING = ("none", "selective", "every_second", "full")
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
        ranks: options of `RankOptions` that were given.
    """

    step: Configuration
    cluster: str
    nodes: int
    ranks: dict[str, Any]
    output: str
    processes: int | None


def parse_cluster(words: Sequence[str]) -> ClusterOptions:
    """Return the settings that the words are."""
    own, words = take_config_dir(words)
    readers: dict[str, Reader] = {
        "nodes": partial(read_count, "nodes"),
        "parallel": read_parallel,
        "checkpointing": each(partial(choice, _CHECKPOINTING, "checkpointing")),
        "wrapped": each(str),
        "reduce_dtype": Precision.of_step,
        "output": partial(choice, ("text", "json"), "output"),
        "processes": partial(read_count, "processes"),
        "batch_size": partial(read_count, "batch_size"),
    }
    options, described = take_options(words, readers)
    described = with_own_model(described)
    given = {word.partition("=")[0]: word.partition("=")[2] for word in described}
    refuse_options(given, "advise")
    for name in _NOT_HERE:
        if name in given:
            raise MembenchError(f"{name} is not an option of advise on several GPUs")
    of_device = device_words(given)
    described = [word for word in described if not word.startswith("device=")]
    described += [*of_device, "framework=pytorch", "strategy=pytorch"]
    described += [f"{name}={value}" for name, value in DEFAULTS.items() if name not in given]
    check_arguments(described, own)
    with hydra_composition(own):
        step = cell_configuration(compose("config", described))
    taken = {name: options.pop(name) for name in ("nodes", "output", "processes") if name in options}
    return ClusterOptions(
        step, given["cluster"], taken.get("nodes", 1), options, taken.get("output", "text"), taken.get("processes")
    )


def run_cluster(settings: ClusterOptions) -> int:
    """Print the advice and return the exit code."""
    # torch takes seconds, which a wrong word need not wait for
    import torch

    from membench.advice.cluster.rank_options import RankOptions
    from membench.advice.cluster.search import ClusterSearch
    from membench.advice.cluster.text import lines, values
    from membench.models.checkpointing import Checkpointing
    from membench.sweep.cells.cell import Cell

    cell = Cell.from_configuration(settings.step)
    workload = cell.workload(cell.batch_size)
    given = dict(settings.ranks)
    half = workload.precision in (Precision.BF16, Precision.FP16)
    reduced = given.pop("reduce_dtype", None)
    if kinds := given.pop("checkpointing", None):
        given["checkpointing"] = tuple(map(Checkpointing, kinds))
    options = RankOptions(
        replace(cell.cluster, hosts=settings.nodes),
        settings.cluster,
        reduce_dtype=reduced.dtype if reduced else torch.float32 if half else None,
        machine=cell.machine,
        kernels=settings.step.get("kernels"),
        **given,
    )
    advice = ClusterSearch(workload, options, cell.optimizer).advice(processes=settings.processes, progress=True)
    if settings.output == "json":
        print(json.dumps(values(advice), indent=2))
    else:
        print("\n".join(lines(advice)))
    return 0 if advice.fits else 2
