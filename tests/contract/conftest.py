from collections.abc import Iterator

import pytest
import torch

from tests.helpers.devices import DEVICE, accelerators_have_what_cuda_has, delay


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small networks: more threads cost time, and the operators' workspaces depend on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def what_cuda_has() -> Iterator[None]:
    with accelerators_have_what_cuda_has():
        yield


@pytest.fixture(autouse=True)
def no_delays() -> Iterator[None]:
    yield
    delay(None)


@pytest.fixture(autouse=True, scope="session")
def deterministic_kernels() -> Iterator[None]:
    """On a GPU, deterministic kernels where there are any; results of the others are compared within tolerances."""
    if DEVICE.type != "cuda":
        yield
        return
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a kernel for each block that comes back
    torch.backends.cudnn.benchmark = False
    yield
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(False)
