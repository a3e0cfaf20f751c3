import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Small networks: more threads cost time, and the operators' workspaces depend on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
