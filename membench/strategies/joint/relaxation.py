"""What the linear program of the lower bound finds: the bound, and fractions of choices that guide the search."""

from dataclasses import dataclass, field

from membench.strategies.joint.gaps import Saving
from membench.strategies.joint.homes import Residence


@dataclass(frozen=True)
class Relaxation:
    """The solution of the linear program.

    Attributes:
        step_s: the lower bound.
        offloaded: the fraction of each unit that is copied, `recomputed` that is recomputed, by unit.
        saved: the fraction of each saving that is taken.
        moved: the fraction of each residence's update that the host runs.
    """

    step_s: float
    offloaded: dict[int, float]
    recomputed: dict[int, float]
    saved: dict[Saving, float] = field(default_factory=dict)
    moved: dict[Residence, float] = field(default_factory=dict)
