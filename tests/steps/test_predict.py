"""`membench.predict`: the same numbers as a simulated step, whether it fits or not, and nothing allocated or changed."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import membench
from membench.core import configuration
from membench.core.errors import MembenchError
from membench.execution.measurement import cpu_peak_bytes
from membench.steps.arguments import as_strategy, workload_of
from membench.steps.predict import Predictor

RTX3090 = configuration.load("device", "rtx3090")


def network(*widths: int) -> nn.Module:
    layers = [layer for width in widths for layer in (nn.LazyConv2d(width, 3), nn.ReLU())]
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(5))
    module(torch.zeros(1, 3, 16, 16))
    return module


def batch(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 3, 16, 16), torch.randint(5, (size,))


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.integers(1, 6),
    st.sampled_from(["eager", "vdnn_all"]),
)
def test_it_predicts_what_the_simulated_step_has(widths: list[int], size: int, strategy: str) -> None:
    step = (network(*widths), nn.functional.cross_entropy, batch(size))
    predicted = membench.predict(*step, device=RTX3090, strategy=strategy)
    simulated = membench.compile(*step, backend="simulated", device=RTX3090, strategy=strategy)
    assert isinstance(simulated, membench.SimulatedStep)
    assert predicted.allocated_bytes == simulated.predicted_peak_bytes == sum(predicted.parts_bytes.values())
    assert predicted.step_time_s == simulated.step_time_s
    assert predicted.fits and predicted.samples_per_s == pytest.approx(size / predicted.step_time_s)


def test_a_step_that_does_not_fit_has_numbers_too() -> None:
    step = (network(4), nn.functional.cross_entropy, batch(2))
    predicted = membench.predict(*step, device=RTX3090)
    too_small = replace(RTX3090, memory_bytes=predicted.allocated_bytes - 1)
    assert not membench.predict(*step, device=too_small).fits
    assert membench.predict(*step, device=too_small).allocated_bytes == predicted.allocated_bytes


def test_settings_of_the_allocator_change_what_is_reserved_and_whether_it_fits() -> None:
    with torch.device("meta"):
        layers = [
            nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()) for _ in range(6)
        ]
        images = torch.randn(16, 32, 64, 64)
        step = (nn.Sequential(*layers), nn.functional.mse_loss, (images, images))
    default = membench.predict(*step, device=RTX3090)
    expandable = membench.predict(*step, device=RTX3090, allocator="expandable_segments:True")
    assert expandable.reserved_bytes < default.reserved_bytes
    assert (
        replace(expandable, reserved_bytes=default.reserved_bytes, used_bytes=default.used_bytes) == default
    )
    assert expandable.used_bytes is not None
    small = replace(RTX3090, memory_bytes=expandable.used_bytes)
    assert not membench.predict(*step, device=small).fits
    assert membench.predict(*step, device=small, allocator="expandable_segments:True").fits
    with pytest.raises(MembenchError, match="max_split_size_mb:5"):
        membench.predict(*step, device=small, allocator="max_split_size_mb:5")


def test_weights_are_only_read_and_nothing_of_their_size_is_allocated() -> None:
    module, example = nn.Linear(1000, 1000), (torch.randn(64, 1000), torch.randint(1000, (64,)))
    before = module.weight.detach().clone()

    def predict() -> None:
        membench.predict(module, nn.functional.cross_entropy, example, device="rtx4090")

    assert cpu_peak_bytes(predict) < example[0].nbytes / 10  # the random generator's state, three times
    assert torch.equal(module.weight, before) and module.weight.grad is None


def test_a_module_on_the_meta_device_has_the_same_prediction() -> None:
    module, example = network(4), batch(3)
    real = membench.predict(module, nn.functional.cross_entropy, example, device="a100_80gb")
    meta = module.to("meta"), tuple(tensor.to("meta") for tensor in example)
    assert membench.predict(meta[0], nn.functional.cross_entropy, meta[1], device="a100_80gb") == real


def test_an_unknown_device_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(MembenchError, match="rtx4090"):
        membench.predict(network(2), nn.functional.cross_entropy, batch(1), device="rtx409O")


def test_an_optimizer_is_a_name_a_class_a_partial_or_an_instance() -> None:
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(400, 300), nn.ReLU(), nn.Linear(300, 400))
        step = (module, nn.functional.cross_entropy, (torch.empty(2, 400), torch.empty(2, dtype=torch.long)))

    def predicted(optimizer: Any) -> membench.Prediction:
        return membench.predict(*step, device=RTX3090, optimizer=optimizer)

    adamw, make = torch.optim.AdamW, partial(torch.optim.AdamW, fused=True)
    assert predicted("adamw") == predicted(adamw) == predicted(adamw(module.parameters()))
    fused = predicted(make)
    assert fused == predicted(make(module.parameters()))
    weights_bytes = sum(weight.nbytes for weight in module.parameters())
    assert predicted("adamw").parts_bytes["workspace"] == weights_bytes
    assert "workspace" not in fused.parts_bytes
    early = predicted(membench.WeightUpdate(make, in_backward=True))
    assert early.allocated_bytes < fused.allocated_bytes
    with pytest.raises(MembenchError, match="an optimizer is a name, a class of torch.optim, .* not 3"):
        predicted(3)


def test_paged_states_cost_time_and_no_memory_of_the_device() -> None:
    pytest.importorskip("bitsandbytes")
    with torch.device("meta"):
        step = (nn.Linear(1000, 1000), nn.functional.cross_entropy, (torch.empty(1, 1000), torch.empty(1, dtype=torch.long)))  # fmt: skip
    paged, held = (
        membench.predict(*step, device=RTX3090, optimizer=name) for name in ("paged_adamw", "adamw")
    )
    assert paged.parts_bytes["optimizer state"] == 2 * 4000 < held.parts_bytes["optimizer state"]
    copied_s = 8e6 / RTX3090.host_to_device_bytes_per_s + 8e6 / RTX3090.device_to_host_bytes_per_s
    assert paged.step_time_s > copied_s > held.step_time_s


def test_a_program_may_have_rates_of_its_own() -> None:
    module = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    workload = workload_of(module, nn.CrossEntropyLoss(), (torch.randn(2, 16), torch.randint(4, (2,))))
    device = configuration.load("device", "t4")
    quick, slow = (
        Predictor(workload, as_strategy("pytorch"), rates=rates).on(device)
        for rates in (None, {"issue_s": 0.01})
    )
    assert slow.step_time_s > 0.05 > quick.step_time_s
    assert slow.allocated_bytes == quick.allocated_bytes
