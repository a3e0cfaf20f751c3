"""What plain PyTorch computes in a step and how much memory it holds, to compare other steps with."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from membench.capture.capture import CapturedStep, capture
from membench.core.errors import MembenchError
from membench.core.libraries.torch_contexts import without_cudnn
from membench.core.step.workload import Workload
from membench.execution.measurement import peak_bytes


class BrokenContract(MembenchError):
    """A strategy, or a file of a package, does not do what all of its kind have to."""


def require(condition: bool, broken: str) -> None:
    """Raise the error about what is broken unless a condition holds."""
    if not condition:
        raise BrokenContract(broken)


GRADIENT_BOUND = 4.0
"""Bound on the relative error of all gradients together, in units of the rounding of a saved activation.

The gradient of each weight sums products with one rounded factor; terms that cancel raise its relative error.
"""


@dataclass(frozen=True)
class Results:
    """Loss, gradients and buffers after a training step."""

    loss: Tensor
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]

    def difference(self, other: "Results") -> str:
        """Return the first result that is not the same bits, or an empty string."""
        if not _same(self.loss, other.loss):
            return f"loss {self.loss} and {other.loss}"
        for kind in ("gradients", "buffers"):
            ours, theirs = getattr(self, kind), getattr(other, kind)
            for name in ours.keys() | theirs.keys():
                if not _same(ours.get(name), theirs.get(name)):
                    return f"{kind[:-1]} of {name}"
        return ""

    def check(self, other: "Results", *, rounding: float) -> None:
        """Check that others are the same bits, or of a schedule that rounds, the same up to the bound on gradients.

        Raises:
            BrokenContract: they are not.
        """
        exact, compared = (self, other) if not rounding else (replace(r, gradients={}) for r in (self, other))
        difference = exact.difference(compared)
        require(not difference, f"a result is not plain PyTorch's: {difference}")
        if rounding:
            _require_close(self.gradient_error(other), GRADIENT_BOUND * rounding)

    def gradient_error(self, other: "Results") -> float:
        """Return the relative error of the other's gradients, all weights' together, in the Euclidean norm."""
        require(self.gradients.keys() == other.gradients.keys(), "the gradients are of other weights")
        ours, theirs = (
            torch.cat([each.flatten().cpu() for each in results.gradients.values() if each is not None])
            for results in (self, other)
        )
        return float((ours - theirs).norm() / ours.norm().clamp(min=torch.finfo().tiny))


def _require_close(error: float, bound: float) -> None:
    require(error <= bound, f"the relative error of gradients is {error:.3g}, and may be {bound:.3g}")


def _same(first: Tensor | None, second: Tensor | None) -> bool:
    """Compare bits, so that NaN equals NaN and 0.0 is not -0.0."""
    if first is None or second is None:
        return first is second
    return (first.dtype, first.shape) == (second.dtype, second.shape) and _bytes(first) == _bytes(second)


def _bytes(tensor: Tensor) -> bytes:
    """Return the elements; bfloat16, which NumPy lacks, as float32."""
    tensor = tensor.cpu().resolve_conj()
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy().tobytes()


def run_step(work: Workload, step: Callable[[], Tensor], buffers: dict[str, Tensor]) -> Results:
    """Run one step from the same state: given buffers, no gradients, the same generator state."""
    module = work.module
    for name, buffer in module.named_buffers():
        buffer.copy_(buffers[name])
    module.zero_grad(set_to_none=True)
    torch.manual_seed(1)
    loss = step()
    gradients = {
        n: None if p.grad is None else p.grad.clone(memory_format=torch.contiguous_format)
        for n, p in module.named_parameters()
    }
    results = Results(loss.detach().clone(), gradients, {n: b.clone() for n, b in module.named_buffers()})
    module.zero_grad(set_to_none=True)
    return results


@dataclass(frozen=True)
class Reference:
    """A captured network, with the results and the peak of one step in plain PyTorch.

    Attributes:
        repeats: plain PyTorch gives the same bits twice, as it does everywhere but on some GPUs.
    """

    work: Workload
    captured: CapturedStep
    buffers: dict[str, Tensor]
    results: Results
    peak_bytes: int
    repeats: bool = True

    def check(self, other: Results, *, rounding: float) -> None:
        """Check a step's results (`Results.check`), closely where plain PyTorch does not repeat its own.

        Raises:
            BrokenContract: they differ.
        """
        if self.repeats:
            self.results.check(other, rounding=rounding)
            return
        is_close = torch.allclose(other.loss, self.results.loss, rtol=1e-5, atol=1e-5)
        require(is_close, f"the loss is {other.loss}, not {self.results.loss}")
        _require_close(self.results.gradient_error(other), 1e-3 + GRADIENT_BOUND * rounding)


class _RecurrenceOfSteps(TorchFunctionMode):
    """Runs recurrent layers as steps do, which leave out cuDNN on a GPU: its sums are rounded differently."""

    _RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with without_cudnn() if func in self._RECURRENT and args[0].device.type == "cuda" else nullcontext():
            return func(*args, **(kwargs or {}))


def reference_of(work: Workload, captured: CapturedStep | None = None) -> Reference:
    """Run a step in plain PyTorch, and capture it unless that was done."""
    assert work.loss is not None
    compute_loss = work.loss
    buffers = {name: buffer.clone() for name, buffer in work.module.named_buffers()}

    def eager() -> Tensor:
        with _RecurrenceOfSteps():
            loss = compute_loss(work.module(*work.inputs), *work.targets)
        loss.backward()
        return loss

    results = run_step(work, eager, buffers)
    repeats = work.device.type == "cpu" or not results.difference(run_step(work, eager, buffers))
    held_bytes = peak_bytes(eager, work.device)
    work.module.zero_grad(set_to_none=True)
    return Reference(work, captured or capture(work), buffers, results, held_bytes, repeats)
