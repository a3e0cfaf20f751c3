"""Predictions of rows: the method of a row, its part of an update, and the largest network of a device."""

from dataclasses import replace
from typing import Any

import pytest

from membench.core import configuration
from membench.lab.validation.predicting import largest_parameters, predict_rows, predictor_of
from membench.lab.validation.rows import LARGEST, Row

SIZES = {"width": 256, "heads": 4, "vocabulary": 512}


def step(layers: int = 2, **changes: Any) -> dict[str, Any]:
    module = {"_target_": "experiments.validation.programs.lohan.LoHan", "layers": layers, **SIZES}
    model = {"name": "gpt", "module": module, "loss": {"_target_": "experiments.validation.programs.lohan.FeatureLoss"}}
    shapes = {"inputs": [{"shape": [64], "below": 512}], "targets": [{"shape": [64, 256]}]}
    described = {"precision": None, "optimizer": "adamw", "channels_last": False, "batch_size": 4}
    return {**described, "model": {**model, **shapes}, **changes}


def row(**changes: Any) -> Row:
    return replace(
        Row(number=0, network="gpt", device="v100", measured={}, next_batch_size=None, step=step()), **changes
    )


@pytest.mark.slow
def test_the_time_of_a_micro_batch_has_its_part_of_the_update() -> None:
    whole, without, part = (
        predict_rows([each])[0].values["step_time_s"]
        for each in (row(), row(step=step(optimizer=None)), row(micro_batches=4))
    )
    assert part == pytest.approx(without + (whole - without) / 4)
    assert without < part < whole


def test_a_row_is_predicted_under_its_strategy() -> None:
    plain, eager = (
        predict_rows([row(step=step(strategy=strategy))])[0].values["allocated_bytes"]
        for strategy in ("pytorch", {"name": "network_wide", "rounds_allocations": True})
    )
    assert eager > plain
    assert "strategy 'nothing' is not known" in predict_rows([row(step=step(strategy="nothing"))])[0].reason


@pytest.mark.slow
def test_a_compiler_that_keeps_layouts_is_predicted_so() -> None:
    module = {"_target_": "torchvision.models.resnet18"}
    loss = {"_target_": "experiments.validation.programs.networks.MeanLoss"}
    images = {"name": "images", "module": module, "loss": loss, "input_shape": [3, 64, 64], "classes": 1000}
    described = {"model": images, "batch_size": 64, "precision": "amp_fp16", "kernels": "inductor"}
    changed, kept = (
        predict_rows([row(step=step(**described, **options))])[0].values["step_time_s"]
        for options in ({}, {"keeps_layout": True})
    )
    assert changed < kept


@pytest.mark.slow
def test_the_settings_of_its_process_are_the_rows_own() -> None:
    module = {"_target_": "torchvision.models.resnet18"}
    loss = {"_target_": "experiments.validation.programs.networks.MeanLoss"}
    images = {"name": "images", "module": module, "loss": loss, "input_shape": [3, 64, 64], "classes": 1000}
    default, *others = (
        predict_rows([row(step=step(model=images, batch_size=64, **options))])[0].values
        for options in ({}, {"allocator": "expandable_segments:True"}, {"benchmark": True})
    )
    assert all(default["reserved_bytes"] != each["reserved_bytes"] for each in others)
    assert all(default["allocated_bytes"] == each["allocated_bytes"] for each in others)


@pytest.mark.slow
def test_the_largest_network_fills_the_device() -> None:
    device = configuration.load("device", "v100")
    small, between, large = (predictor_of(step(layers)) for layers in (4, 6, 8))
    used_bytes = between.on(device).used_bytes
    weights = largest_parameters(small, large, device=replace(device, memory_bytes=used_bytes), machine=None)
    assert weights == pytest.approx(sum(each.numel() for each in between.module.parameters()), rel=0.05)
    assert LARGEST in predict_rows([row(sizes=(step(2), step(4)))])[0].values


def test_a_network_whose_sizes_are_tensors_is_predicted() -> None:
    """A RegNet cannot be made on the meta device."""
    module = {"_target_": "torchvision.models.regnet_y_400mf", "weights": None}
    model = {"module": module, "loss": {"_target_": "torch.nn.CrossEntropyLoss"}, "input_shape": [3, 32, 32]}
    [found] = predict_rows([row(step=step(model={"name": "regnet", "classes": 10, **model}))])
    assert not found.reason and found.values["allocated_bytes"] > 4.3e6 * 4  # its weights
