"""The emulated GPU computes the CPU's bits, late copies and kernels are late, and what is not waited for is seen."""

import pytest
import torch
from torch import Tensor

from membench.backends.cpu import Chaos
from membench.conformance.networks import NETWORKS, workload_of
from membench.conformance.results import Results, run_step
from membench.core.step.workload import Workload
from tests.helpers.devices import DEVICE, delay

pytestmark = pytest.mark.emulated
OTHER_KERNELS = {"vit"}
"""Networks whose attention torch takes apart where a device has no kernel for it."""


def step_on(work: Workload, device: torch.device) -> Results:
    work.module.to(device)
    inputs, targets = ([each.to(device) for each in group] for group in (work.inputs, work.targets))

    def run() -> Tensor:
        assert work.loss is not None
        loss = work.loss(work.module(*inputs), *targets)
        loss.backward()
        return loss

    buffers = {name: buffer.clone() for name, buffer in work.module.named_buffers()}
    return run_step(work, run, buffers)


def test_a_number_of_the_program_takes_the_type_of_a_tensor_without_dimensions() -> None:
    for value in torch.rand(50):
        assert torch.equal((0.3 * value.to(DEVICE)).cpu(), 0.3 * value)


@pytest.mark.parametrize("network", NETWORKS)
def test_plain_pytorch_has_the_bits_of_the_cpu(network: str) -> None:
    on_cpu = step_on(workload_of(network, DEVICE), torch.device("cpu"))
    delay(Chaos(seed=1, longest_delay_s=0.0002))
    on_device = step_on(workload_of(network, DEVICE), DEVICE)
    if network in OTHER_KERNELS:
        assert on_cpu.gradient_error(on_device) < 1e-5
    else:
        difference = on_cpu.difference(on_device)
        assert not difference, difference
