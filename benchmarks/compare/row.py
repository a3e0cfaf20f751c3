"""Row: one method on one network."""

from dataclasses import dataclass

from membench.core.step.kernels import Kernels
from membench.core.units import format_bytes

OK, NOT_RUN = "ok", "not run"
LEFT_OUT = "left out of this run"
"""Why a peer that was not asked for was not run."""
EAGER = "eager PyTorch"
PYTORCH, PEER, MEMBENCH = "pytorch", "peer", "membench"
LARGEST_ERROR = 1e-4
"""Of eager's largest gradient: a method beyond it computes something else."""
ROUNDINGS = 10
"""How many times rounding the error of a peer, which may use other kernels, or of compiled kernels may be."""
TRAINING, INFERENCE = "training", "inference"


@dataclass(frozen=True)
class Row:
    """What was measured of one method on one network, or why it was not run.

    Attributes:
        tool: ``pytorch`` (eager), ``peer`` or ``membench``.
        kernels: the strategy's kind of kernels; see `Kernels`.
        budget_bytes: the strategy's budget; None: it may hold any amount.
        reason: why it was not run.
        peak_bytes: the peak of the device's memory; weights, batch and gradients count.
        held_bytes: still allocated after the step and once its gradients are dropped, until garbage is collected.
        to_host_bytes, to_device_bytes, repeated_bytes, weight_bytes: see `Copies`.
        error: the largest difference of a gradient, or of inference's output, from eager's, in eager's largest value.
        rounding: the error that eager itself has if each weight changes by one unit in its last place; networks with
            batch norm amplify it.
        is_exact: whether all of them equal eager's bit for bit.
        missing: weights without a gradient that have one in eager PyTorch.
        statistics_updates: how often the step updated the batch norms' statistics; None: there are none.
        has_exact_buffers: whether statistics and other buffers equal eager's bit for bit after the step.
        first_time_over_eager: a strategy's median of the rounds that chose, in eager's there: those of the best
            of all kinds of kernels together, or those after which it was left out.
        step_time_s: the median of the rounds after them, in which eager, the peers and the strategies that were not
            dominated took turns, None for other ones; `eager_time_s`: eager's there. Of a GPU seconds that passed; on
            the CPU those that all threads of the process spent computing and copying, which do not depend on the
            machine's other processes.
        elapsed_time_s: the median of the seconds that passed there. On a CPU with more processes than cores, one that
            sleeps while its copies run waits less for a core, so these compare only where nothing else runs.
        ready_time_s: seconds of CPU time until it was ready: capture excluded, plan or compilation included.
        same_as: the strategy whose schedule is the same; it was measured once.
    """

    network: str
    mode: str
    tool: str
    method: str
    outcome: str
    reason: str = ""
    budget_bytes: int | None = None
    peak_bytes: int | None = None
    held_bytes: int | None = None
    to_host_bytes: int | None = None
    to_device_bytes: int | None = None
    repeated_bytes: int | None = None
    weight_bytes: int | None = None
    error: float | None = None
    rounding: float | None = None
    is_exact: bool | None = None
    missing: int | None = None
    statistics_updates: int | None = None
    has_exact_buffers: bool | None = None
    first_time_over_eager: float | None = None
    step_time_s: float | None = None
    eager_time_s: float | None = None
    elapsed_time_s: float | None = None
    ready_time_s: float | None = None
    rounds: int | None = None
    same_as: str = ""
    kernels: str = Kernels.EAGER

    @property
    def has_eagers_results(self) -> bool:
        """Whether it was run and computes every gradient, or the output, as eager does, up to rounding."""
        return self.outcome == OK and not self.missing and not self.is_wrong

    @property
    def is_wrong(self) -> bool:
        """Whether gradients, or the output, differ from eager's by more than rounding."""
        has_own_kernels = self.tool == PEER or self.kernels != Kernels.EAGER
        of_kernels = ROUNDINGS * (self.rounding or 0.0) if has_own_kernels else 0.0
        return (self.error or 0.0) > max(LARGEST_ERROR, of_kernels)

    @property
    def name(self) -> str:
        """The method, with its kernels unless they are eager PyTorch's."""
        return self.method if self.kernels == Kernels.EAGER else f"{self.method}, {self.kernels}"

    @property
    def label(self) -> str:
        """The method, with its kernels and budget."""
        return self.name if self.budget_bytes is None else f"{self.name} within {format_bytes(self.budget_bytes)}"

    @property
    def time_over_eager(self) -> float | None:
        """The step's time in eager's, both of the same rounds."""
        return self.step_time_s / self.eager_time_s if self.step_time_s and self.eager_time_s else None
