"""Collectives: what several devices pass to each other, as nouns; `membench.cost.collectives` has their seconds."""

from dataclasses import dataclass
from enum import StrEnum

from membench.core.checks import NAME, NOT_NEGATIVE, check


class CollectiveKind(StrEnum):
    """What is passed, in the terms of torch.distributed."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    SEND = "send"
    """From one rank to a neighbour on the axis."""
    RECEIVE = "receive"
    """What a neighbour has sent."""


@dataclass(frozen=True, slots=True)
class GroupOf:
    """An argument of a call: the process group of an axis, which is known when a step is made of the graph."""

    axis: str


@dataclass(frozen=True, slots=True)
class Collective:
    """One exchange between the ranks of one axis of a mesh.

    Attributes:
        kind: what is passed.
        size_bytes: size of the whole tensor in one rank: after an all-gather; before a reduction or an all-to-all; the
            message of a send.
        axis: axis of the mesh whose ranks take part.
        message: name by which a receive finds its send.
        peer: for a message, how many places further on the axis the other rank is, 1 or -1.

    Raises:
        MembenchError: the size is negative, or the axis has no name.
    """

    kind: CollectiveKind
    size_bytes: int
    axis: str
    message: str = ""
    peer: int = 0

    @property
    def stream(self) -> str:
        """Its stream: each axis has one, and messages to and from each neighbour, which wait for that one alone."""
        is_message = self.kind in (CollectiveKind.SEND, CollectiveKind.RECEIVE)
        return f"{self.kind} {self.axis} {self.peer:+}" if is_message else f"collectives {self.axis}"

    def __post_init__(self) -> None:
        check(NOT_NEGATIVE, size_bytes=self.size_bytes)
        check(NAME, axis=self.axis)
