"""Pipeline parallelism: how a module is cut into stages, and what each rank computes in which order."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

import torch

from membench.core.checks import COUNT, check
from membench.core.errors import MembenchError

PIPELINED = "pp"
"""Axis of the mesh over whose ranks a module is cut into stages."""


class PipelineSchedule(StrEnum):
    """Order of the micro-batches of a step, by the names of torch.distributed.pipelining.

    GPIPE: Huang et al. 2019, Section 2.3. ONE_FORWARD_ONE_BACKWARD and INTERLEAVED: Narayanan et al., "Efficient
    Large-Scale Language Model Training on GPU Clusters", SC 2021, Section 2.2. ZERO_BUBBLE: Qi et al., "Zero Bubble
    Pipeline Parallelism", ICLR 2024, Section 2.1, as torch's ScheduleInterleavedZeroBubble has it.
    """

    GPIPE = "GPipe"
    ONE_FORWARD_ONE_BACKWARD = "1F1B"
    INTERLEAVED = "Interleaved1F1B"
    ZERO_BUBBLE = "InterleavedZeroBubble"


class ActionKind(StrEnum):
    """The part of a stage's step on one micro-batch that runs at a time."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT_GRADIENT = "gradients of the stage's inputs"
    WEIGHT_GRADIENT = "gradients of its weights"


class Action(NamedTuple):
    """A part of a step: of one stage, on one micro-batch."""

    kind: ActionKind
    stage: int
    micro_batch: int


@dataclass(frozen=True)
class Pipeline:
    """The stages of a module, of which rank `r` of the axis has stages `r`, `r + ranks`, `r + 2 x ranks` ...

    Attributes:
        ranks: number of ranks of the axis.
        begins: the module with which each stage but the first begins.
        micro_batches: number of micro-batches of a step.
        schedule: their order.
        gradient_dtype: in which gradients of several micro-batches are added up; None: that in which they are computed.
        axis: axis of the mesh.

    Raises:
        MembenchError: the stages cannot be divided equally over the ranks, or the micro-batches over the rounds of the
            schedule.
    """

    ranks: int
    begins: tuple[str, ...]
    micro_batches: int
    schedule: PipelineSchedule = PipelineSchedule.ONE_FORWARD_ONE_BACKWARD
    gradient_dtype: torch.dtype | None = None
    axis: str = PIPELINED

    def __post_init__(self) -> None:
        check(COUNT, ranks=self.ranks, micro_batches=self.micro_batches)
        if self.stages % self.ranks:
            raise MembenchError(
                f"{self.stages} stages cannot be divided equally over {self.ranks} ranks; use a multiple of them"
            )
        is_single = self.schedule in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_FORWARD_ONE_BACKWARD)
        if is_single and self.stages != self.ranks:
            raise MembenchError(
                f"{self.schedule} has one stage on each rank, but there are {self.stages} stages for {self.ranks} "
                f"ranks; use "
                f"{PipelineSchedule.INTERLEAVED} or {PipelineSchedule.ZERO_BUBBLE}"
            )
        if not is_single and self.micro_batches % max(1, self.micro_batches // self.ranks):
            raise MembenchError(
                f"{self.micro_batches} micro-batches cannot be divided into rounds of {self.ranks}; use a multiple of "
                f"{self.ranks}"
            )

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.begins) + 1

    @property
    def shorter(self) -> "tuple[Pipeline, Pipeline] | None":
        """Two shorter pipelines that this one's step follows from, None if it is not longer or holds more memory.

        Once all ranks are busy, each further round of micro-batches takes as long as the one before, and adds its
        inputs alone. A round is as many as there are ranks; where each has one stage and no pass is split, two are
        enough, of which the host may be ahead of the device in one alone.
        """
        few, round_of = (1 + self.stages // self.ranks) * self.ranks, self.ranks
        if self.schedule is PipelineSchedule.ONE_FORWARD_ONE_BACKWARD:
            few, round_of = self.ranks + 2, 2
        if self.schedule is PipelineSchedule.GPIPE or self.micro_batches <= 2 * few + round_of:
            return None
        return replace(self, micro_batches=few), replace(self, micro_batches=few + round_of)

    def actions(self, rank: int) -> list[Action]:
        """Return what a rank does in a step, in order."""
        if self.schedule is PipelineSchedule.GPIPE:
            return [
                Action(kind, rank, micro_batch)
                for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)
                for micro_batch in range(self.micro_batches)
            ]
        return list(_OneForwardOneBackward(self, rank).actions())


class _OneForwardOneBackward:
    """The order in which forward and backward passes alternate, behind as many forward passes as fill the pipeline.

    torch's ScheduleInterleaved1F1B has twice the forward passes of Schedule1F1B before, for each rank that follows.
    """

    def __init__(self, pipeline: Pipeline, rank: int) -> None:
        self._pipeline, self._rank = pipeline, rank
        self._each = pipeline.stages // pipeline.ranks
        micro_batches = pipeline.micro_batches
        self._per_round = micro_batches // max(1, micro_batches // pipeline.ranks)
        self._seen: Counter[tuple[ActionKind, int]] = Counter()

    def actions(self) -> Iterator[Action]:
        """Yield the actions of the rank."""
        factor = 2 if self._pipeline.schedule is PipelineSchedule.INTERLEAVED else 1
        behind = self._pipeline.ranks - 1 - self._rank
        total = self._pipeline.micro_batches * self._each
        warm_up = min((self._each - 1) * self._per_round + factor * behind, total)
        is_split = self._pipeline.schedule is PipelineSchedule.ZERO_BUBBLE
        backward = ActionKind.INPUT_GRADIENT if is_split else ActionKind.BACKWARD
        for position in range(warm_up):
            yield self._next(ActionKind.FORWARD, position)
        for position in range(total):
            if position + warm_up < total:
                yield self._next(ActionKind.FORWARD, position + warm_up)
            yield self._next(backward, position)
            if is_split and position >= self._rank:
                yield self._next(ActionKind.WEIGHT_GRADIENT, position - self._rank)
        if is_split:
            for position in range(max(0, total - self._rank), total):
                yield self._next(ActionKind.WEIGHT_GRADIENT, position)

    def _next(self, kind: ActionKind, position: int) -> Action:
        """Return the action of a kind at a position among those of its kind."""
        local = position // self._per_round % self._each
        if kind is not ActionKind.FORWARD:
            local = self._each - 1 - local
        stage = local * self._pipeline.ranks + self._rank
        self._seen[kind, stage] += 1
        return Action(kind, stage, self._seen[kind, stage] - 1)
