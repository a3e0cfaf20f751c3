"""Workloads that cannot become a step are refused before capture."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from membench.core.errors import MembenchError, UnsupportedModel
from membench.core.step.workload import Workload

LOSS = nn.functional.cross_entropy
IMAGES, LABELS = torch.randn(4, 3), torch.randint(2, (4,))


class Conjugate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, dtype=torch.complex64).conj())


@dataclass
class Held:
    """What torch's pytree cannot open."""

    images: Tensor


@pytest.mark.parametrize(
    ("module", "loss", "inputs", "message"),
    [
        (lambda x: x, LOSS, (IMAGES,), "the module is a torch.nn.Module, not <function"),
        (nn.Linear(3, 2), "cross_entropy", (IMAGES,), "the loss .* cannot be 'cross_entropy'"),
        (nn.Linear(3, 2), nn.CrossEntropyLoss, (IMAGES,), "the loss .* cannot be <class"),
        (nn.Linear(3, 2), LOSS, (IMAGES.to_sparse(),), r"inputs\[0\] is a sparse or nested tensor"),
        (nn.Linear(3, 2), LOSS, (IMAGES[:0],), "the batch is empty"),
        (nn.Linear(3, 2), None, (IMAGES,), "a step of inference has no targets"),
        (nn.Linear(3, 2), LOSS, {"x": [IMAGES.to_sparse()]}, r"inputs\['x'\]\[0\] is a sparse or nested tensor"),
        (nn.Linear(3, 2), LOSS, (IMAGES, [1, Held(IMAGES)]), r"inputs\[1\]\[1\] is a Held, with a Tensor in it"),
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
def test_what_cannot_be_captured_is_refused_with_what_to_do(module: Any, loss: Any, inputs: Any, message: str) -> None:
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


@pytest.mark.parametrize(
    ("loss", "targets", "message"),
    [
        (lambda output: output.sum(), (LABELS,), r"called with the module's output and 1 target, and takes \(output\)"),
        (
            nn.CrossEntropyLoss(),
            (),
            r"output and 0 targets, and takes \(input: .*missing a required argument: 'target'",
        ),
        (LOSS, (LABELS, LABELS, LABELS, LABELS, LABELS, LABELS, LABELS, LABELS), "and 8 targets, and takes"),
    ],
)
def test_a_loss_that_does_not_take_the_targets_is_refused(loss: Any, targets: Any, message: str) -> None:
    with pytest.raises(MembenchError, match=message):
        Workload("net", nn.Linear(3, 2), loss, (IMAGES,), targets)


@pytest.mark.parametrize("loss", [torch.sum, lambda *outputs: outputs[0].sum(), nn.MSELoss(), None])
def test_a_loss_that_does_is_not(loss: Any) -> None:
    targets = (torch.randn(4, 2),) if isinstance(loss, nn.MSELoss) else ()
    assert Workload("net", nn.Linear(3, 2), loss, (IMAGES,), targets).loss is loss


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    """A mesh of this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_sharded_weights_are_taken_and_distributed_batches_are_refused(mesh: DeviceMesh) -> None:
    sharded = fully_shard(nn.Sequential(nn.Linear(3, 2)), mesh=mesh)
    assert Workload("net", sharded, LOSS, (IMAGES,), (LABELS,)).module is sharded  # its shards are a step's own
    with warnings.catch_warnings(action="ignore"):  # one process has nothing to shard
        wrapped = FullyShardedDataParallel(nn.Linear(3, 2), device_id=torch.device("cpu"))
    with pytest.raises(UnsupportedModel, match="each process has only a part of its weights"):
        Workload("net", wrapped, LOSS, (IMAGES,), (LABELS,))
    batch = distribute_tensor(IMAGES, mesh, [Shard(0)])
    with pytest.raises(MembenchError, match=r"inputs\[0\] is a DTensor; pass this process's share"):
        Workload("net", nn.Linear(3, 2), LOSS, (batch,), (LABELS,))


def test_another_number_of_samples_shares_what_the_batch_shares() -> None:
    tokens = torch.randint(9, (1, 6))
    work = Workload("step", nn.Embedding(9, 2), lambda out, _: out.sum(), (tokens,), (tokens,))
    resized = work.with_batch(4)
    assert resized.inputs[0] is resized.targets[0] and resized.inputs[0].shape == (4, 6)
    apart = Workload("step", nn.Embedding(9, 2), lambda out, _: out.sum(), (tokens,), (tokens.clone(),))
    assert apart.with_batch(4).inputs[0] is not apart.with_batch(4).targets[0]
    parts = Workload("step", nn.Embedding(9, 2), lambda out, _: out.sum(), (tokens[:, 1:],), (tokens[:, :-1],))
    assert parts.with_batch(4).inputs[0] is not parts.with_batch(4).targets[0]
