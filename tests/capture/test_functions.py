"""Functions that are traced in another form than PyTorch would run them."""

import pytest
import torch

from membench.capture.functions import AsOperators


def _enabled() -> tuple[bool, bool]:
    return torch._C._get_mkldnn_enabled(), torch._C._get_cudnn_enabled()


@pytest.mark.parametrize("fails", [False, True])
def test_recurrent_networks_are_traced_without_fused_kernels(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CuDNN's need a GPU; what can be seen without one is what such a function finds switched off."""
    seen = []

    def recurrent() -> None:
        seen.append(_enabled())
        if fails:
            raise ValueError

    before = _enabled()
    monkeypatch.setattr(AsOperators, "_RECURRENT", (recurrent,))
    try:
        AsOperators().__torch_function__(recurrent, ())
    except ValueError:
        assert fails
    assert seen == [(False, False)]
    assert _enabled() == before != (False, False)


def test_dropout_of_everything_draws_nothing() -> None:
    maps, before = torch.randn(3), torch.get_rng_state()
    with AsOperators():
        dropped = torch.nn.functional.dropout(maps, 1.0)
    assert dropped.equal(torch.nn.functional.dropout(maps, 1.0))
    assert torch.get_rng_state().equal(before)
