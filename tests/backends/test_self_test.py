"""The self-test holds on the emulated GPU, and names what does not hold."""

import pytest
import torch

from membench.backends import self_test
from tests.helpers.devices import accelerators_have_what_cuda_has


@pytest.mark.cuda
@pytest.mark.emulated
def test_all_promises_hold(capsys: pytest.CaptureFixture[str]) -> None:
    with accelerators_have_what_cuda_has():
        assert self_test.main() == 0
    assert capsys.readouterr().out.count("holds: ") == len(self_test.PROMISES)


def test_a_broken_promise_is_named_with_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing_is_lost(device: torch.device) -> bool:
        return False

    def nothing_fails(device: torch.device) -> bool:
        raise RuntimeError("the driver is too old\nfor this")

    promises = (self_test._a_product_has_the_same_bits_twice, nothing_is_lost, nothing_fails)
    monkeypatch.setattr(self_test, "PROMISES", promises)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cpu"))
    assert self_test.main() == 1
    holding, lost, failing = capsys.readouterr().out.splitlines()
    assert holding.startswith("holds:") and "same bits twice" in holding
    assert lost == "does not hold: nothing is lost"
    assert failing.startswith("does not hold: nothing fails: ") and "driver is too old" in failing


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
    assert self_test.main() == 1
    assert "torch sees none" in capsys.readouterr().out
