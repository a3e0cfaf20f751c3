"""`membench.advise`: plain PyTorch's prediction, plans that can be compiled, and nothing allocated."""

import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import membench
from membench.advice.advise import Adviser
from membench.advice.device.text import code
from membench.advice.pool.workers import Workers
from membench.core import configuration
from membench.core.errors import MembenchError, UnsupportedModel
from membench.core.step.workload import Workload
from membench.core.units import MIB
from membench.steps.request import StepRequest
from membench.strategies.pytorch import PyTorch

CARD = configuration.load("device", "rtx3090")
METHODS = ("pytorch", "eager", "joint", "modnn", "epmc", "layrub_hybrid", "vdnn_conv")
SIZE = 32
pytestmark = pytest.mark.usefixtures("kept_planners")


def network(device: str = "meta") -> nn.Module:
    torch.manual_seed(0)
    with torch.device(device):
        layers = [layer for _ in range(4) for layer in (nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def batch(size: int = SIZE, device: str = "meta") -> tuple[Tensor, Tensor]:
    with torch.device(device):
        return torch.randn(size, 32, 64, 64), torch.randint(10, (size,))


def small_card() -> membench.DeviceProfile:
    """Return a card on which plain PyTorch does not fit, with a context of 1 MiB."""
    plain = membench.predict(network(), nn.CrossEntropyLoss(), batch(), device=CARD, optimizer="adamw")
    return replace(CARD, memory_bytes=int(0.7 * plain.reserved_bytes) + MIB, context_bytes=MIB)


@pytest.fixture(scope="module")
def advice(kept_planners: None) -> membench.Advice:
    step = (network(), nn.functional.cross_entropy, batch())
    return membench.advise(*step, device=small_card(), optimizer="adamw", methods=METHODS, levers=False, processes=1)


def test_plain_pytorch_is_what_predict_predicts(advice: membench.Advice) -> None:
    step = (network(), nn.CrossEntropyLoss(), batch())
    assert advice.plain == membench.predict(*step, device=small_card(), optimizer="adamw")
    assert not advice.fits
    assert sum(advice.parts_bytes.values()) == advice.allocated_bytes
    assert sum(advice.activations_bytes.values()) == advice.parts_bytes["activations"]
    assert advice.allocated_bytes + advice.fragmentation_bytes == advice.reserved_bytes
    assert advice.used_bytes == advice.reserved_bytes + (advice.besides_bytes or 0)


def test_what_the_process_holds_besides_counts_in_the_advice() -> None:
    step = (network(), nn.CrossEntropyLoss(), batch(4))
    options: dict[str, Any] = {"device": CARD, "largest": "none", "levers": False, "processes": 1, "methods": ["joint"]}
    free, full = (membench.advise(*step, **options, also=also) for also in (None, CARD.memory_bytes - 10 * MIB))
    assert isinstance(free, membench.Advice) and isinstance(full, membench.Advice)
    assert (free.fits, full.fits) == (True, False)
    assert full.besides_bytes == (CARD.context_bytes or 0) + CARD.memory_bytes - 10 * MIB
    assert free.plans and not full.plans


def test_the_largest_batch_of_plain_pytorch_fits_and_one_more_does_not(advice: membench.Advice) -> None:
    assert advice.largest_batch is not None and advice.largest_batch < SIZE
    fits = [
        membench.predict(network(), nn.CrossEntropyLoss(), batch(size), device=small_card(), optimizer="adamw").fits
        for size in (advice.largest_batch, advice.largest_batch + 1)
    ]
    assert fits == [True, False]


def test_plans_are_those_of_compile_the_fastest_first(advice: membench.Advice) -> None:
    assert {"joint", "modnn"} <= {plan.name for plan in advice.plans}
    assert {"eager"} <= advice.refused.keys()
    times = [plan.step_time_s for plan in advice.plans]
    assert all(later > 0.999 * earlier for earlier, later in pairwise(times))
    for plan in advice.plans:
        step = membench.compile(
            network(),
            nn.CrossEntropyLoss(),
            batch(),
            backend="simulated",
            device=small_card(),
            optimizer="adamw",
            **plan.options,
        )
        assert (plan.peak_bytes, plan.step_time_s) == (step.predicted_peak_bytes, step.step_time_s)
        assert plan.peak_bytes <= plan.reserved_bytes <= small_card().memory_bytes
        measured = step.measure()
        assert plan.copied_bytes == measured.offloaded_bytes + measured.prefetched_bytes
        assert (plan.copied_bytes > 0) == (plan.host_bytes > 0)
        assert sum(samples * count for samples, count in plan.micro_batches) == SIZE


def test_a_plan_with_another_batch_norm_is_not_the_best(advice: membench.Advice) -> None:
    by_name = {plan.name: plan for plan in advice.plans}
    assert by_name["joint"].is_exact and by_name["joint"].gap is not None
    parts = by_name["modnn"].micro_batches
    assert by_name["modnn"].is_exact == (parts == ((SIZE, 1),))
    assert advice.best is not None and advice.best.is_exact


def test_a_method_that_saves_memory_has_a_larger_batch(advice: membench.Advice) -> None:
    by_name = {plan.name: plan for plan in advice.plans}
    largest = by_name["layrub_hybrid"].largest_batch
    assert largest is not None and largest > SIZE

    def fits(size: int) -> bool:
        return membench.predict(
            network(), nn.CrossEntropyLoss(), batch(size),
            device=small_card(), optimizer="adamw", strategy="layrub_hybrid",
        ).fits  # fmt: skip

    assert fits(largest) and not fits(int(1.1 * largest))
    assert by_name["modnn"].divides_batch and by_name["modnn"].largest_batch is None
    assert by_name["joint"].largest_batch == SIZE  # within a budget it is not searched for
    refused = advice.refused["eager"].largest_batch
    assert refused is not None and refused <= (advice.largest_batch or 0) * 1.05


def test_plain_pytorch_is_offered_in_micro_batches(advice: membench.Advice) -> None:
    (plan,) = (plan for plan in advice.plans if plan.name == "pytorch")
    assert plan.micro_batch == 16 and plan.micro_batches == ((16, 1), (16, 1))
    assert not plan.is_exact  # of batch norm
    assert plan.largest_batch == advice.largest_batch
    assert plan.options["micro_batch"] == 16


def test_of_equally_fast_methods_plain_pytorch_comes_first() -> None:
    found = membench.advise(
        network(), nn.CrossEntropyLoss(), batch(), device=CARD, methods=["joint", "eager", "pytorch"], processes=1
    )
    assert [plan.name for plan in found.plans] == ["pytorch", "joint", "eager"]
    assert found.fits and found.best is found.plans[0]


def test_what_fits_is_answered_without_other_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Workers, "start", lambda _: pytest.fail("a process was started"))
    step, begun = (network(), nn.CrossEntropyLoss(), batch()), list[membench.Advice]()
    found = membench.advise(*step, device=CARD)
    assert found.fits and [plan.name for plan in found.plans] == ["pytorch"] and not found.refused
    assert found.plans[0].step_time_s == found.step_time_s and (found.largest_batch or 0) > SIZE
    [compiled] = found.levers
    assert compiled.names == ("torch.compile",) and found.fastest is min(
        (compiled, found.plans[0]), key=lambda way: way.step_time_s or 0.0
    )
    alone = membench.predict(*step, device=CARD, kernels="inductor")
    assert (compiled.step_time_s, compiled.peak_bytes) == (alone.step_time_s, alone.allocated_bytes)
    text = str(found).splitlines()
    assert any("plain PyTorch fits, and methods that save memory seldom save time" in line for line in text)
    workload = Workload("net", step[0], step[1], *((each,) for each in step[2]))
    whole = Adviser(workload, CARD, StepRequest(PyTorch())).advice(largest="none", begun=begun.append)
    assert [each.plain for each in begun] == [whole.plain] and not begun[0].plans


def test_a_method_fits_with_the_largest_batch_of_plain_pytorch() -> None:
    step = (network(), nn.CrossEntropyLoss(), batch())
    found = membench.advise(*step, device=CARD, methods=["pytorch", "eager"], levers=False, processes=1)
    eager = next(plan for plan in found.plans if plan.name == "eager")
    assert (eager.largest_batch or 0) >= (found.largest_batch or 0) > SIZE


@pytest.mark.slow
def test_the_lines_to_paste_run_and_so_does_the_plan() -> None:
    model, criterion, (inputs, targets) = network("cpu"), nn.CrossEntropyLoss(), batch(2, "cpu")
    found = membench.advise(
        model, criterion, (inputs, targets), device=CARD, precision="amp_bf16", optimizer="adamw",
        budget=9 * MIB, methods=["joint"], largest="none", levers=False, processes=1,
    )  # fmt: skip
    assert found.best is not None
    names = {"model": network("cpu"), "criterion": criterion, "inputs": inputs, "targets": targets}
    names["optimizer"] = torch.optim.AdamW(names["model"].parameters())
    lines = code(found, found.best)
    assert len(lines) == 3
    exec("\n".join(lines), names)
    assert isinstance(names["loss"], Tensor)
    step = found.best.compile("cpu")
    assert torch.equal(step(inputs, targets), names["loss"])
    assert step.schedule.strategy == "joint"


def test_plans_and_their_simulations_are_in_the_chosen_machine() -> None:
    step = (network(), nn.CrossEntropyLoss(), batch())
    given = {"device": CARD, "optimizer": "adamw"}
    found = membench.advise(*step, machine="desktop", methods=["zero_infinity"], largest="none", processes=1, **given)
    [plan] = found.plans
    expected, by_default = (
        membench.compile(*step, machine=machine, strategy=plan.name, backend="simulated", **given)
        for machine in ("desktop", None)
    )
    assert plan.step_time_s == expected.step_time_s > by_default.step_time_s
    assert plan.compile("simulated", device=CARD).step_time_s == plan.step_time_s
    assert str(found).splitlines()[0].endswith("simulated on rtx3090 in machine desktop")


def test_what_cannot_fit_is_not_planned() -> None:
    step = (network(), nn.CrossEntropyLoss(), batch())
    found = membench.advise(*step, device=CARD, budget=1000, methods=["eager", "joint"], levers=False, processes=1)
    assert not found.plans and not found.fits and not found.levers and found.largest_batch is None
    weights = sum(weight.numel() * weight.itemsize for weight in network().parameters())
    eager, joint = found.refused["eager"], found.refused["joint"]
    assert not eager.is_planned and eager.needed_bytes is not None and eager.needed_bytes >= 2 * weights
    assert joint.is_planned and joint.lower_bound_bytes is not None  # it might have moved the weights


def test_methods_that_take_too_long_are_left_out() -> None:
    step = (network(), nn.CrossEntropyLoss(), batch())
    limited = {"device": small_card(), "methods": ["layrub_hybrid"], "levers": False, "processes": 1}
    found = membench.advise(*step, time_limit_s=0.001, **limited)
    assert found.refused["layrub_hybrid"].reason == "not planned within the time limit"
    assert not found.refused["layrub_hybrid"].is_planned and found.refused["layrub_hybrid"].needed_bytes is None


def test_gradients_that_are_freed_late_are_refused() -> None:
    by = membench.WeightUpdate(torch.optim.SGD, gradients="freed_late")
    step = nn.Linear(4, 4), nn.functional.mse_loss, (torch.ones(2, 4), torch.ones(2, 4))
    with pytest.raises(MembenchError, match="gradients='freed_late' is of plain PyTorch's program alone"):
        membench.advise(*step, device="rtx3060", optimizer=by)


def test_what_cannot_be_captured_is_refused() -> None:
    class Untraceable(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.sum().item()

    with pytest.raises(UnsupportedModel):
        membench.advise(Untraceable(), None, (torch.randn(2, 3, device="meta"), ()), device=CARD, processes=1)


@pytest.mark.slow
def test_processes_do_not_run_the_program_again(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import torch, membench
print("once")
class Net(torch.nn.Linear):
    pass
step = (Net(4, 4), lambda y: y.mean(), (torch.randn(2, 4), ()))
found = membench.advise(*step, device="t4", methods=["eager"], processes=1)
print(found.fits, [plan.name for plan in found.plans])
"""
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "once\nTrue ['eager']\n"
