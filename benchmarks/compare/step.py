"""A step under any method, as the comparison measures it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from benchmarks.compare.copies import Copies, CopiesBetweenDevices, CopyMeter
from membench.backends.tensor_backend import TensorBackend
from membench.core.step.workload import Workload
from membench.sweep.cells.baselines import PlainPyTorch
from membench.sweep.cells.measured import callers_bytes


@dataclass(frozen=True)
class Step:
    """A step, ready to run.

    Attributes:
        run: run it once; leaves gradients in `module`, or returns the output.
        count: return what one step copies; it may run one.
        callers_bytes: what is in the device's memory before the step.
        backends: a strategy's backends.
        close: end threads.
    """

    run: Callable[[], object]
    module: nn.Module
    count: Callable[[], Copies]
    callers_bytes: int
    backends: Sequence[TensorBackend] = ()
    close: Callable[[], None] = lambda: None

    @property
    def trains(self) -> bool:
        return self.module.training

    def clear(self) -> None:
        """Drop the gradients."""
        self.module.zero_grad(set_to_none=True)


def plain_step(workload: Workload, run: Callable[[], Tensor] | None = None) -> Step:
    """Return a step of PyTorch's autograd, eager unless it is given; weights and batch are on the device."""
    run = run or PlainPyTorch().step(workload)
    return Step(run, workload.module, _counting(workload, run), callers_bytes(workload))


def _counting(workload: Workload, run: Callable[[], Tensor]) -> Callable[[], Copies]:
    if workload.device.type == "cpu":
        return Copies
    meter = CopyMeter(workload.module.parameters())

    def count() -> Copies:
        with CopiesBetweenDevices(meter):
            run()
        return meter.copies

    return count
