"""What may be asked of a step on several GPUs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from membench.core.checks import COUNT, check, choice
from membench.core.graph.precision import as_dtype
from membench.core.hardware.cluster import Cluster
from membench.core.hardware.machine import Machine
from membench.models.checkpointing import Checkpointing
from membench.steps.kinds import as_names
from membench.steps.parallel.tensor_parallel import TensorParallelPlan


@dataclass(frozen=True)
class RankOptions:
    """What is asked of a step on several GPUs.

    Attributes:
        cluster: with all its hosts, and with their device.
        name: the cluster's name; empty where it is a description.
        parallel: sizes of axes, ``{"fsdp": 8}``; None: all products that are the number of GPUs.
        wrapped, reduce_dtype, tensor_parallel: see `membench.predict`.
        checkpointing: kinds that are tried.
        batch_size: samples in a step for each GPU, in micro-batches; None: any micro-batch, as large as fits, and
            several through a pipeline.
        machine: each host's machine; None: the one of ``conf/machine/server.yaml``.
        kernels: ``"inductor"``: each repeated block is given to `torch.compile`, as torchtitan does; ``"eager"``; None:
            what was given to it is predicted as compiled.
    """

    cluster: Cluster
    name: str = ""
    parallel: Mapping[str, int] | None = None
    wrapped: str | Sequence[str] | None = None
    reduce_dtype: torch.dtype | None = None
    checkpointing: Sequence[Checkpointing] = tuple(Checkpointing)
    batch_size: int | None = None
    machine: Machine | None = None
    tensor_parallel: TensorParallelPlan | None = None
    kernels: str | None = None

    @classmethod
    def of(cls, cluster: Cluster, name: str, machine: Machine | None, options: Mapping[str, Any]) -> Self:
        """Return what options ask.

        Args:
            options: `membench.advice.cluster.keywords.CombinationKeywords`, and ``kernels``.

        Raises:
            MembenchError: there is no such kind of checkpointing, or no such dtype.
        """
        named = as_names(options.get("checkpointing") or Checkpointing)
        kinds = [choice(Checkpointing, "checkpointing", each) for each in named]
        reduce_dtype = as_dtype(options.get("reduce_dtype"), "reduce_dtype")
        given = {**options, "checkpointing": tuple(kinds), "reduce_dtype": reduce_dtype}
        return cls(cluster, name, machine=machine, **given)

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            check(COUNT, batch_size=self.batch_size)
