"""The nouns of an advice on several GPUs, all of them simulated numbers."""

from collections.abc import Mapping
from dataclasses import dataclass

from membench.advice.cluster.combinations import Combination
from membench.core.hardware.cluster import Cluster
from membench.core.result import Result
from membench.steps.predicted.prediction import Prediction

BLOCK_BY_BLOCK, AS_GIVEN = "block by block", "as given"
"""What is given to `torch.compile`."""


@dataclass(frozen=True)
class RankPlan:
    """A combination, and what each GPU takes for it.

    Attributes:
        strategy: the method that schedules the step.
    """

    combination: Combination
    prediction: Prediction
    strategy: str = "pytorch"

    @property
    def samples_per_s(self) -> float:
        """Samples per second for each GPU."""
        return self.combination.samples / self.prediction.step_time_s


@dataclass(frozen=True)
class Nearest:
    """The combination that lacks the least memory.

    Attributes:
        needed_bytes: memory that one GPU needs, next to its context.
        is_bound: it needs at least that, and was not simulated.
    """

    combination: Combination
    needed_bytes: int
    is_bound: bool


@dataclass(frozen=True)
class ClusterAdvice(Result, text="membench.advice.cluster.text", picture="membench.advice.cluster.picture"):
    """Whether a step fits on several GPUs, with which combination, and how fast.

    Attributes:
        model: name of the workload.
        cluster: with as many hosts as are asked for, and with their device.
        cluster_name: empty where the cluster is a description.
        batch_size: samples in a step for each GPU, held fixed; None: those of the micro-batch, as large as fits.
        tokens: tokens in a sample; None: samples are not sequences.
        compiled: how the module is, `BLOCK_BY_BLOCK` or `AS_GIVEN`; empty: it is not.
        blocks: the places of the repeated modules that are gathered, and run again, one by one.
        classes: the names of their classes.
        begins: by the stages of a pipeline, the block with which each but the first begins.
        plans: those that fit and were simulated, the fastest first: by samples of one GPU per second.
        searched: combinations in all, those that were not simulated included.
        too_large: combinations whose memory exceeds the device's, with `too_large_by_bound` of them not simulated.
        failed: combinations that cannot be captured or predicted, see `refused`.
        is_alike: the numbers of few blocks were those of the whole network, wherever it was captured; otherwise bounds
            are estimates.
        too_slow: that fit by the bound on their memory, and whose bound on the time exceeds that of all that are named.
        refused: kinds of checkpointing that the program does not allow, and why.
        nearest: where none fits.
        states_bytes: weights, gradients and optimizer's states of all GPUs that share them.
    """

    model: str
    precision: str | None
    optimizer: str | None
    reduce_dtype: str | None
    cluster: Cluster
    cluster_name: str
    batch_size: int | None
    tokens: int | None
    compiled: str
    blocks: tuple[str, ...]
    classes: tuple[str, ...]
    begins: Mapping[int, tuple[str, ...]]
    plans: tuple[RankPlan, ...]
    searched: int
    too_large: int
    too_large_by_bound: int
    too_slow: int
    failed: int
    is_alike: bool
    refused: Mapping[str, str]
    nearest: Nearest | None
    states_bytes: int

    @property
    def device(self) -> str:
        """Name of the device."""
        return self.cluster.device_name

    @property
    def free_bytes(self) -> int:
        """Of a GPU, next to its context."""
        return self.cluster.free_bytes

    @property
    def fits(self) -> bool:
        """Whether a combination fits."""
        return bool(self.plans)

    @property
    def best(self) -> RankPlan | None:
        """The fastest one that fits."""
        return self.plans[0] if self.plans else None
