"""`membench.predict`: a simulated step's numbers, whether it fits or not, and nothing allocated or changed."""

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
from membench.core.errors import MembenchError, UnsupportedModel
from membench.core.step.optimizer import Gradients
from membench.core.units import GIB, MIB
from membench.execution.measurement import cpu_peak_bytes
from membench.steps.arguments import as_strategy, workload_of
from membench.steps.predict import Predictor
from membench.steps.predicted.intervals import StepKind, has_published_times
from membench.steps.request import StepRequest

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
@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(1, 6), st.sampled_from(["eager", "vdnn_all"]))
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


def test_a_kind_of_step_is_what_it_does() -> None:
    training = (network(4), nn.functional.cross_entropy, batch(2))
    plain = membench.predict(*training, device=RTX3090).kind
    assert plain == StepKind(trains=True, several=False, copies=False, measured=has_published_times(RTX3090.name))
    assert membench.predict(*training, device=RTX3090, strategy="vdnn_all").kind == replace(plain, copies=True)
    inference = membench.predict(training[0], None, (training[2][0], ()), device=RTX3090).kind
    assert inference == replace(plain, trains=False)


def test_settings_of_the_allocator_change_what_is_reserved_and_whether_it_fits() -> None:
    with torch.device("meta"):
        layers = [nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()) for _ in range(6)]
        images = torch.randn(16, 32, 64, 64)
        step = (nn.Sequential(*layers), nn.functional.mse_loss, (images, images))
    default = membench.predict(*step, device=RTX3090)
    expandable = membench.predict(*step, device=RTX3090, allocator="expandable_segments:True")
    assert expandable.reserved_bytes < default.reserved_bytes
    assert replace(expandable, reserved_bytes=default.reserved_bytes, used_bytes=default.used_bytes) == default
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
        batch = torch.empty(1, 1000), torch.empty(1, dtype=torch.long)
        step = (nn.Linear(1000, 1000), nn.functional.cross_entropy, batch)
    paged, held = (membench.predict(*step, device=RTX3090, optimizer=name) for name in ("paged_adamw", "adamw"))
    assert paged.parts_bytes["optimizer state"] == 2 * 4000 < held.parts_bytes["optimizer state"]
    copied_s = 8e6 / RTX3090.host_to_device_bytes_per_s + 8e6 / RTX3090.device_to_host_bytes_per_s
    assert paged.step_time_s > copied_s > held.step_time_s


def test_a_program_may_have_rates_of_its_own() -> None:
    module = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    workload = workload_of(module, nn.CrossEntropyLoss(), (torch.randn(2, 16), torch.randint(4, (2,))))
    device = configuration.load("device", "t4")
    quick, slow = (
        Predictor(workload, StepRequest(as_strategy("pytorch")), rates=rates).on(device)
        for rates in (None, {"issue_s": 0.01})
    )
    assert slow.step_time_s > 0.05 > quick.step_time_s
    assert slow.allocated_bytes == quick.allocated_bytes


def logits_of_many_classes() -> tuple[nn.Module, Any, tuple[Tensor, Tensor]]:
    with torch.device("meta"):
        module = nn.Sequential(*(nn.Linear(64, 64) for _ in range(2)), nn.Linear(64, 8192))
        return module, nn.functional.cross_entropy, (torch.empty(32, 64), torch.empty(32, dtype=torch.long))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate": 4},
        {"kernels": "inductor"},
        {"optimizer": membench.WeightUpdate(torch.optim.SGD, gradients=Gradients.KEPT)},
        {"cluster": "dgx_h100", "parallel": {"fsdp": 8}},
        {"cluster": "dgx_h100", "parallel": {"dp": 8}, "accumulate": 2},
    ],
    ids=str,
)
def test_a_program_may_hold_the_output(options: dict[str, Any]) -> None:
    device = {} if "cluster" in options else {"device": RTX3090}
    free, held = (
        membench.predict(*logits_of_many_classes(), **device, **options, holds_output=holds) for holds in (False, True)
    )
    logits_bytes = 32 * 8192 * 4  # of one micro-batch
    assert held.allocated_bytes - free.allocated_bytes == logits_bytes
    assert held.parts_bytes["output"] == logits_bytes
    assert held.step_time_s == free.step_time_s


def test_the_rest_of_the_process_counts_in_what_is_used_and_whether_it_fits() -> None:
    plain = membench.predict(*logits_of_many_classes(), device=RTX3090)
    stated = membench.predict(*logits_of_many_classes(), device=RTX3090, context="1 GB", also="2 GB")
    assert plain.used_bytes == plain.reserved_bytes + (RTX3090.context_bytes or 0)
    assert stated.used_bytes == stated.reserved_bytes + 3 * GIB
    rest_bytes = RTX3090.memory_bytes - plain.reserved_bytes - GIB
    fits = [
        membench.predict(*logits_of_many_classes(), device=RTX3090, context="1 GB", also=rest_bytes + more).fits
        for more in (0, plain.reserved_bytes)
    ]
    assert fits == [True, False]


class First(nn.Module):
    """Reads one element of its input, which it does not need to hold for a gradient."""

    def forward(self, values: Tensor) -> Tensor:
        return values[:1] + 1


def _fits(device: str, size_bytes: int) -> bool:
    values = torch.empty(size_bytes // 4, device="meta")
    return membench.predict(First(), None, ((values,), ()), device=device).fits


@pytest.mark.parametrize("device", configuration.names("device"))
def test_one_tensor_fits_up_to_what_the_context_leaves_of_the_driver_s_total(device: str) -> None:
    profile = configuration.load("device", device)
    assert _fits(device, profile.free_bytes - 4 * MIB)
    assert not _fits(device, profile.free_bytes + 4 * MIB)


def test_tensors_do_not_fit_that_cards_with_such_labels_have_refused() -> None:
    assert not _fits("l4", int(23.5 * GIB))  # of "24 GB"
    assert not _fits("t4", int(14.8 * GIB))
    assert not _fits("rtx4090", int(23.7 * GIB))
    assert not _fits("rtx2080ti", int(10.77 * GIB))
    assert not _fits("v100", int(31.75 * GIB))


def test_a_device_with_other_links_than_the_cluster_s_is_refused_before_anything_else() -> None:
    batch = ((torch.empty(2, 4, device="meta"),), ())
    with pytest.raises(MembenchError, match="mi300x has Infinity Fabric 3 x7, .* choose cluster mi300x8"):
        membench.predict(nn.Linear(4, 4), None, batch, cluster="dgx_h100", device="mi300x")


@pytest.mark.usefixtures("kept_planners")
@pytest.mark.parametrize("net", [nn.Identity(), nn.Flatten(), nn.Dropout(0.5), nn.Sequential()])
def test_a_step_of_inference_without_operators_takes_no_time(net: nn.Module) -> None:
    batch = ((torch.randn(2, 3, 4),), ())
    found = membench.predict(net.eval(), None, batch, device="t4")
    assert (found.allocated_bytes, found.step_time_s, found.parts_bytes) == (96, 0, {"inputs": 96})
    assert found.fits and found.samples_per_s == float("inf")
    advice = membench.advise(net, None, batch, device="t4", processes=1, methods=["eager"])
    assert advice.fits
    assert "0.0 us" in str(advice)
    step = membench.compile(net, None, batch)
    assert step.predicted_peak_bytes == 96
    assert torch.equal(step(batch[0][0]), net(batch[0][0]))


def test_a_step_of_training_without_weights_is_refused_with_what_to_do() -> None:
    batch = ((torch.randn(2, 3),), ())
    for entry, device in ((membench.predict, {"device": "t4"}), (membench.compile, {})):
        with pytest.raises(UnsupportedModel, match="for the gradient of an input, make the input a torch.nn.Parameter"):
            entry(nn.Identity(), torch.sum, batch, **device)  # type: ignore[operator]


def test_micro_batches_on_one_device_add_up_gradients() -> None:
    net, batch = nn.Linear(64, 64), ((torch.randn(8, 64),), ())
    one, four = (
        membench.predict(net, torch.sum, batch, device="t4", optimizer="adam", accumulate=count) for count in (1, 4)
    )
    assert four.batch_size == 32 and four.stages == ()
    assert 1 < four.step_time_s / one.step_time_s < 4
    assert four == membench.predict(net, torch.sum, batch, cluster="one", device="t4", optimizer="adam", accumulate=4)
    with pytest.raises(MembenchError, match="a step of inference does not have; leave it out"):
        membench.predict(net, None, batch, device="t4", accumulate=2)


class _Guided(nn.Module):
    """A frozen network whose input is trained."""

    def __init__(self, network: nn.Module, image: Tensor) -> None:
        super().__init__()
        self.network, self.image = network.requires_grad_(False), nn.Parameter(image)

    def forward(self) -> Tensor:
        found: Tensor = self.network(self.image)
        return found


def test_the_gradient_of_an_input_is_predicted_as_the_text_advises() -> None:
    found = membench.predict(_Guided(nn.Linear(64, 64), torch.randn(8, 64)), torch.sum, ((), ()), device="t4")
    assert found.parts_bytes["weight gradients"] == 8 * 64 * 4


def test_gradients_freed_behind_the_forward_pass_are_held_in_it() -> None:
    freed, late = (
        membench.predict(
            *logits_of_many_classes(),
            device=RTX3090,
            optimizer=membench.WeightUpdate(torch.optim.SGD, gradients=gradients),
        )
        for gradients in (Gradients.FREED, Gradients.FREED_LATE)
    )
    assert late.allocated_bytes > freed.allocated_bytes
    assert late.step_time_s == freed.step_time_s


@pytest.mark.parametrize(
    "options", [{"accumulate": 2}, {"strategy": "eager"}, {"cluster": "dgx_h100", "parallel": {"fsdp": 8}}], ids=str
)
def test_gradients_freed_late_are_those_of_one_device(options: dict[str, Any]) -> None:
    by = membench.WeightUpdate(torch.optim.SGD, gradients=Gradients.FREED_LATE)
    device = {} if "cluster" in options else {"device": RTX3090}
    with pytest.raises(MembenchError, match="^gradients='freed_late' is predicted on one device"):
        membench.predict(*logits_of_many_classes(), optimizer=by, **device, **options)


def test_a_pipeline_holds_no_output() -> None:
    parallel = {"cluster": "dgx_h100", "parallel": {"pp": 2, "dp": 4}, "accumulate": 2}
    with pytest.raises(MembenchError, match="^a pipeline calls the stages itself; leave holds_output out"):
        membench.predict(*logits_of_many_classes(), **parallel, holds_output=True)  # type: ignore[arg-type]


def test_a_step_under_another_method_holds_no_output() -> None:
    with pytest.raises(MembenchError, match="^holds_output is of plain PyTorch's program, and a step under strategy"):
        membench.predict(*logits_of_many_classes(), device=RTX3090, strategy="eager", holds_output=True)
