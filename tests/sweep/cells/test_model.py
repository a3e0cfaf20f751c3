"""Models as files of conf/model describe them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from membench.core.errors import MembenchError
from membench.sweep.cells.model import Model

HERE = __name__


def loss(output: Tensor, label: Tensor, scale: float = 1.0) -> Tensor:
    return (output.sum(1) - label).square().mean() * scale


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, images: Tensor, offset: float = 0.0) -> Tensor:
        return images * self.weight + offset


def model_of(**options: Any) -> Model:
    named = {"name": "sum", "module": {"_target_": f"{HERE}.Sum"}, "loss": {"_target_": f"{HERE}.loss"}}
    return Model.from_configuration({**named, **options})


@pytest.mark.parametrize("loss_options", [{}, {"scale": 3.0}])
def test_a_function_is_the_loss_itself(loss_options: dict[str, float]) -> None:
    described = {"_target_": f"{HERE}.loss", **loss_options}
    work = model_of(loss=described, input_shape=[3], classes=4).workload(2, seed=0, device="cpu")
    assert work.loss is not None
    expected = loss(work.output(), *work.targets, **loss_options)
    assert torch.equal(work.loss(work.output(), *work.targets), expected)


def test_inputs_and_targets_are_passed_by_name() -> None:
    work = model_of(
        inputs={"images": {"shape": [3]}, "offset": 2.0}, targets={"label": {"shape": [], "below": 4}}
    ).workload(2, seed=0, device="cpu")
    assert isinstance(work.inputs, dict)
    assert torch.equal(work.output(), work.inputs["images"] + 2.0)
    assert work.targets["label"].shape == (2,)


def test_short_and_long_descriptions_make_the_same_batch() -> None:
    short = model_of(input_shape=[3], vocabulary=5, classes=4, target_shape=[2])
    long = model_of(inputs=[{"shape": [3], "below": 5}], targets=[{"shape": [2], "below": 4}])
    batches = []
    for model in (short, long):
        work = model.workload(6, seed=1, device="cpu")
        batches.append((*work.inputs, *work.targets))
    assert all(torch.equal(*pair) for pair in zip(*batches, strict=True))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nopackage.Net", r"nopackage.Net cannot be imported \(No module named 'nopackage'\); write package"),
        (f"{HERE}.Product", "Product cannot be imported .*has no attribute 'Product'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_refused(target: str, message: str) -> None:
    with pytest.raises(MembenchError, match=message):
        model_of(module={"_target_": target}, input_shape=[3], classes=4).workload(1, seed=0, device="meta")


def test_a_module_that_computes_with_values_as_it_is_built_is_on_the_meta_device_too() -> None:
    described = {
        "name": "regnet",
        "module": {"_target_": "torchvision.models.regnet_x_400mf"},
        "loss": {"_target_": "torch.nn.CrossEntropyLoss"},
        "input_shape": [3, 32, 32],
        "classes": 1000,
    }
    work = Model.from_configuration(described).workload(2, seed=0, device="meta")
    assert {each.device.type for each in (*work.module.parameters(), *work.module.buffers())} == {"meta"}
