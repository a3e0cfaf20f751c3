"""Copies between the "device" and the host on the CPU."""

import torch

from membench.profiling.link import measure_link


def test_the_cpus_link_is_measured_without_a_random_number() -> None:
    state = torch.get_rng_state()
    link = measure_link(torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), state)
    assert link.device_to_host_bytes_per_s > 1e8
    assert 0 <= link.delay_s_per_byte < 1e-6
