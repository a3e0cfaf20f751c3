"""A wrapped module gives the bits of the module itself under a loss of its caller, at its predicted peak."""

from functools import partial

import pytest
import torch
from torch import Tensor

import membench
from membench.backends.cpu import Chaos
from membench.backends.tensor_backend import TensorBackend
from membench.conformance.results import Reference, run_step
from membench.conformance.steps import bytes_in_host_memory, has_parallel_tasks
from membench.core.errors import UnsupportedStrategy
from membench.core.graph.schedule import Schedule
from membench.core.libraries.torch_internals import tree_leaves
from membench.core.step.arguments import call_with
from membench.steps.wrapped import wrapped_step
from tests.helpers.devices import DEVICE, allocator_peak_bytes, backend_of
from tests.helpers.networks.contract import reference
from tests.helpers.steps.variants import COMBINED, marks_of

pytestmark = pytest.mark.accelerator

OF_EVERY_KIND = ("alexnet", "googlenet", "lstm", "vit")
"""Dropout, several outputs, weights that are used several times, attention."""
KEEPS_WEIGHTS_ON_HOST = {"zero_infinity", "zero_offload"}
ALWAYS = {
    "eager": {"alexnet", "lstm", "vit"},
    "superneurons": {"alexnet", "lstm", "vit"},
    "layrub_hybrid": {"alexnet", "lstm", "vit"},
}
"""The networks of a variant that `make test` or `make test-slow` tests; of the others ``vit`` alone.

`make test-exhaustive` runs the rest.
"""
EACH_VARIANT_AND_NETWORK = [
    pytest.param(
        variant, name, marks=marks_of(variant) if name in ALWAYS.get(variant, {"vit"}) else pytest.mark.exhaustive
    )
    for name in OF_EVERY_KIND
    for variant in COMBINED
]


def run_forward_and_backward(module: torch.nn.Module, case: Reference) -> None:
    """Run a call with gradients of its outputs that are made at the turn, as a loss makes them."""
    outputs = [each for each in tree_leaves(call_with(module, case.work.inputs)) if isinstance(each, Tensor)]
    torch.autograd.backward(outputs, [torch.ones_like(each) for each in outputs])


def check_wrapped(case: Reference, variant: str) -> None:
    module = membench.wrap(case.work.module, strategy=COMBINED[variant], example=case.work.inputs, backend=DEVICE.type)
    [step] = module.wrapped_calls.steps
    work, schedule = case.work, step.schedule

    def run() -> Tensor:
        loss = call_with(work.loss, work.targets, call_with(module, work.inputs))
        loss.backward()
        return loss

    case.check(run_step(work, run, case.buffers), rounding=schedule.rounding)
    run = partial(run_forward_and_backward, module, case)
    measured_bytes = schedule.graph.external_bytes + allocator_peak_bytes(run, step.backends)
    work.module.zero_grad(set_to_none=True)
    assert measured_bytes <= step.predicted_peak_bytes
    if not has_parallel_tasks(schedule):
        assert measured_bytes >= step.predicted_peak_bytes - bytes_in_host_memory(schedule, DEVICE.type)
    assert step.waiting == 0
    module.wrapped_calls.close()


@pytest.mark.parametrize(("variant", "network"), EACH_VARIANT_AND_NETWORK)
def test_results_and_peak_are_exact_even_when_copies_are_late_and_freed_memory_is_poisoned(
    network: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = reference(network)
    if DEVICE.type != "cpu" and variant in KEEPS_WEIGHTS_ON_HOST:
        with pytest.raises(UnsupportedStrategy, match="keeps weights in host memory"):
            check_wrapped(case, variant)
        return
    check_wrapped(case, variant)

    def late(schedule: Schedule, _: torch.device) -> TensorBackend:
        return backend_of(schedule, Chaos(seed=3, longest_delay_s=0.0005))

    monkeypatch.setattr(wrapped_step, "real_backend", late)
    check_wrapped(case, variant)
