"""Prediction of what was given to `torch.compile`."""

import copy

import pytest
import torch
from torch import nn

import membench
from membench.core.errors import MembenchError, UnsupportedModel
from membench.steps.predicted.prediction import Prediction


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.gate, self.fall = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = rows + self.fall(nn.functional.gelu(self.gate(self.norm(rows))) * 2)
        return found


def network() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(*(Block() for _ in range(2)), nn.Linear(64, 1000))


def predicted(module: nn.Module, loss: object = nn.functional.cross_entropy, **options: object) -> Prediction:
    with torch.device("meta"):
        batch = torch.empty(4096, 64), torch.empty(4096, dtype=torch.long)
    return membench.predict(module, loss, batch, **{"device": "rtx3090", **options})  # type: ignore[arg-type]


def numbers(found: Prediction) -> tuple[float, int, int]:
    return found.step_time_s, found.allocated_bytes, found.reserved_bytes


@pytest.fixture(scope="module")
def eager() -> Prediction:
    return predicted(network())


def test_a_compiled_module_is_predicted_so_unless_the_caller_says_otherwise(eager: Prediction) -> None:
    whole, in_place = torch.compile(network()), network()
    in_place.compile()
    found = predicted(whole)  # type: ignore[arg-type]
    assert found.step_time_s < eager.step_time_s and found.allocated_bytes < eager.allocated_bytes
    assert numbers(predicted(in_place)) == numbers(found)
    assert numbers(predicted(in_place, kernels="eager")) == numbers(eager)
    step = predicted(network(), kernels="inductor")
    assert step.allocated_bytes < found.allocated_bytes  # the loss is fused, too


def test_compiled_layers_and_losses_are_predicted_each_by_itself(eager: Prediction) -> None:
    module = network()
    module[0] = torch.compile(module[0])  # type: ignore[index]
    one = predicted(module)
    module[1].compile()  # type: ignore[index]
    both = predicted(module)
    with_loss = predicted(module, torch.compile(nn.functional.cross_entropy))
    times = [each.step_time_s for each in (eager, one, both, with_loss)]
    assert times == sorted(times, reverse=True) and len(set(times)) == 4
    assert with_loss.allocated_bytes < both.allocated_bytes <= eager.allocated_bytes


def test_other_compiled_functions_are_refused() -> None:
    module = network()
    module[2] = Compiled()  # type: ignore[index]
    with pytest.raises(UnsupportedModel, match="compile"):
        predicted(module)
    assert predicted(module, kernels="inductor").fits
    with pytest.raises(MembenchError, match="kernels"):
        predicted(network(), kernels="triton")


class Compiled(nn.Module):
    """Calls a function that was given to `torch.compile`."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.compile(torch.sin)(rows)


def test_images_keep_their_layout_where_the_caller_told_the_compiler_so() -> None:
    import torch._inductor.config

    with torch.device("meta"):
        module = nn.Sequential(nn.Conv2d(3, 128, 3), nn.Conv2d(128, 128, 3), nn.Flatten())
        batch = torch.empty(8, 3, 32, 32), torch.empty(8, dtype=torch.long)

    def step_time_s(layers: nn.Module) -> float:
        return membench.predict(
            layers, nn.functional.cross_entropy, batch, device="rtx3090", precision="amp_fp16"
        ).step_time_s

    compiled = torch.compile(module)
    changed_s = step_time_s(compiled)  # type: ignore[arg-type]
    with torch._inductor.config.patch(layout_optimization=False):
        kept_s = step_time_s(compiled)  # type: ignore[arg-type]
    assert changed_s < kept_s <= step_time_s(module)


def test_fused_tasks_are_sharded_within_their_modules(eager: Prediction) -> None:
    options = {"cluster": "dgx_h100", "device": None, "parallel": {"fsdp": 8}, "optimizer": "adamw"}
    of_ranks, fused = (predicted(network(), kernels=each, **options) for each in ("eager", "inductor"))
    assert fused.step_time_s < of_ranks.step_time_s and fused.allocated_bytes < of_ranks.allocated_bytes
    assert fused.parts_bytes["optimizer state"] == of_ranks.parts_bytes["optimizer state"]


def test_a_simulated_step_is_the_predicted_one() -> None:
    with torch.device("meta"):
        batch = torch.empty(4096, 64), torch.empty(4096, dtype=torch.long)
    module, loss = network(), nn.functional.cross_entropy
    for given, kernels in ((module, "inductor"), (torch.compile(module), None)):
        step = membench.compile(
            given,
            loss,
            batch,
            backend="simulated",
            device="rtx3090",
            strategy="pytorch",
            kernels=kernels,  # type: ignore[arg-type]
        )
        found = predicted(given, kernels=kernels)  # type: ignore[arg-type]
        assert (step.predicted_peak_bytes, step.step_time_s) == (found.allocated_bytes, found.step_time_s)  # type: ignore[union-attr]


@pytest.mark.slow
def test_methods_plan_over_fused_tasks(eager: Prediction) -> None:
    module = copy.deepcopy(network())
    fused = predicted(module, kernels="inductor", strategy="joint")
    budget = int(0.8 * fused.allocated_bytes)
    assert predicted(module, kernels="inductor", strategy="joint", budget=budget).allocated_bytes <= budget
