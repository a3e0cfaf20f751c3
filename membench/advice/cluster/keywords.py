"""Keywords about the combinations that an advice on several GPUs tries; without torch, as those of the ranks."""

from membench.steps.kinds import Count, Names
from membench.steps.parallel.keywords import DivisionKeywords


class CombinationKeywords(DivisionKeywords, total=False):
    """Which combinations are tried.

    Attributes:
        checkpointing: kinds of `Checkpointing`, ``["none", "full"]``; None: all.
        batch_size: samples in a step for each GPU, in micro-batches; None: any micro-batch, as large as fits.
    """

    checkpointing: Names | None
    batch_size: Count | None
