"""Functions that are traced in another form than PyTorch would run them."""

import pytest
import torch

from membench.capture.operators.functions import AsOperators


@pytest.mark.parametrize("fails", [False, True])
def test_recurrent_networks_are_traced_without_cudnn(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels need a GPU; what can be seen without one is that such a function finds it switched off."""
    seen = []

    def recurrent() -> None:
        seen.append(torch._C._get_cudnn_enabled())
        if fails:
            raise ValueError

    before = torch._C._get_cudnn_enabled()
    monkeypatch.setattr(AsOperators, "_RECURRENT", (recurrent,))
    try:
        AsOperators().__torch_function__(recurrent, ())
    except ValueError:
        assert fails
    assert seen == [False]
    assert torch._C._get_cudnn_enabled() == before


def test_dropout_of_everything_draws_nothing() -> None:
    maps, before = torch.randn(3), torch.get_rng_state()
    with AsOperators():
        dropped = torch.nn.functional.dropout(maps, 1.0)
    assert dropped.equal(torch.nn.functional.dropout(maps, 1.0))
    assert torch.get_rng_state().equal(before)
