"""Workloads that cannot become a step are refused before capture."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from membench.core.errors import MembenchError, UnsupportedModel
from membench.core.workload import Workload

LOSS = nn.functional.cross_entropy
IMAGES, LABELS = torch.randn(4, 3), torch.randint(2, (4,))


class Conjugate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.complex64).conj())


@pytest.mark.parametrize(
    ("module", "loss", "inputs", "message"),
    [
        (lambda x: x, LOSS, (IMAGES,), "the module is a torch.nn.Module, not <function"),
        (nn.Linear(3, 2), "cross_entropy", (IMAGES,), "the loss .* cannot be 'cross_entropy'"),
        (nn.Linear(3, 2), nn.CrossEntropyLoss, (IMAGES,), "the loss .* cannot be <class"),
        (nn.Linear(3, 2), LOSS, (IMAGES.to_sparse(),), r"inputs\[0\] is a sparse or nested tensor"),
        (nn.Linear(3, 2), LOSS, (IMAGES[:0],), "the batch is empty"),
        (nn.Linear(3, 2), None, (IMAGES,), "a step of inference has no targets"),
        (nn.Linear(3, 2), LOSS, ({"x": IMAGES},), r"inputs\[0\] is a dict, with a Tensor in it; pass each"),
        (nn.Linear(3, 2), LOSS, (IMAGES, [1, IMAGES]), r"inputs\[1\] is a list, with a Tensor in it"),
        (nn.Linear(3, 2), LOSS, (np.zeros((4, 3)),), r"inputs\[0\] is a ndarray; pass"),
        (nn.DataParallel(nn.Linear(3, 2)), LOSS, (IMAGES,), "pass the module inside it"),
        (
            nn.Sequential(torch.jit.script(nn.Linear(3, 2))),
            LOSS,
            (IMAGES,),
            "'0' is not supported: TorchScript does not expose",
        ),
        (Conjugate(), LOSS, (IMAGES,), "'weight' is not supported: it is a conjugate or negative view"),
        (nn.LazyLinear(2), LOSS, (IMAGES,), "'weight' is not supported: its shape is not known yet"),
    ],
)
def test_what_cannot_be_captured_is_refused_with_what_to_do(
    module: Any, loss: Any, inputs: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(MembenchError, match=message):
        Workload("net", module, loss, inputs, (LABELS,))


def test_plain_values_are_arguments_like_others() -> None:
    assert Workload("net", nn.Linear(3, 2), LOSS, (2.0, (None, "mean"), IMAGES), (LABELS,)).batch_size == 4


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(weight=torch.ones(2)), nn.NLLLoss(torch.ones(2))])
def test_a_mean_weighted_by_classes_cannot_be_cut(loss: nn.Module) -> None:
    work = Workload("net", nn.Linear(3, 2), loss, (IMAGES,), (torch.zeros(len(IMAGES), dtype=torch.int64),))
    assert work.of_size(len(IMAGES)) is work
    with pytest.raises(UnsupportedModel, match="its mean is weighted by their classes; pass a tensor"):
        work.of_size(1)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(reduction="sum"), nn.MSELoss(reduction="none")])
def test_a_loss_that_is_not_a_mean_has_no_micro_batches(loss: nn.Module) -> None:
    work = Workload("net", nn.Linear(3, 2), loss, (IMAGES,), (LABELS,))
    with pytest.raises(UnsupportedModel, match="a mean over the samples, but its reduction is '(sum|none)'"):
        work.of_size(2)


def test_a_loss_that_is_a_mean_over_the_batch_has_micro_batches() -> None:
    work = Workload("net", nn.Linear(3, 2), nn.KLDivLoss(reduction="batchmean"), (IMAGES,), (IMAGES[:, :2],))
    assert work.of_size(1).loss_scale == 0.25
