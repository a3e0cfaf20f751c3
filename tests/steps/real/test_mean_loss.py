"""Losses in micro-batches: one that is not a mean over the samples is refused when it is compiled."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import membench
from membench.core.errors import UnsupportedModel
from membench.steps.real.micro_batched_step import MicroBatchedStep
from tests.helpers.steps.wrapping import check_same, state_of

Loss = Callable[[Tensor, Tensor], Tensor]
INPUTS, LABELS = torch.linspace(-1, 1, 30).view(6, 5).sin(), torch.tensor([0, 1, 2, 3, 1, 2])


def of_those_that_count(scores: Tensor, labels: Tensor) -> Tensor:
    counts = (labels > 0).float()
    return (functional.cross_entropy(scores, labels, reduction="none") * counts).sum() / counts.sum()


def contrast(scores: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(scores @ scores.t(), torch.arange(len(labels)))


OTHERS: dict[str, Loss] = {
    "a sum": lambda scores, labels: functional.cross_entropy(scores, labels, reduction="sum"),
    "a mean of those that count": of_those_that_count,
    "a root": lambda scores, labels: functional.mse_loss(scores[:, 0], labels.float()).sqrt(),
    "samples against each other": contrast,
}
MEANS: dict[str, Loss] = {
    "a mean": functional.cross_entropy,
    "a sum over their number": lambda s, t: functional.cross_entropy(s, t, reduction="sum") / len(t),
    "a mean that is almost zero": lambda scores, labels: (scores[:, 0] - scores[:, 0].detach()).mean(),
    "a random one": lambda s, t: functional.cross_entropy(functional.dropout(s, 0.5), t),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4))


@pytest.mark.parametrize("name", OTHERS)
def test_a_loss_that_is_not_a_mean_over_the_samples_is_refused_for_micro_batches_alone(name: str) -> None:
    with pytest.raises(UnsupportedModel, match="'loss' .* of 4 samples of the example .* losses of 2 and 2"):
        membench.compile(network(), OTHERS[name], (INPUTS, LABELS), micro_batch=2)
    membench.compile(network(), OTHERS[name], (INPUTS, LABELS))


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_over_the_samples_is_compiled_and_leaves_everything_as_it_was(name: str) -> None:
    module = network()
    before, random = copy.deepcopy(module), torch.get_rng_state()
    membench.compile(module, MEANS[name], (INPUTS, LABELS), micro_batch=2)
    check_same(state_of(module), state_of(before))
    assert torch.get_rng_state().equal(random)


class WithLoss(nn.Module):
    """A network that computes its loss, as those of transformers do."""

    def __init__(self, loss: Loss, *, fails_in_evaluation: bool = False) -> None:
        super().__init__()
        self.network, self.loss, self.fails_in_evaluation = network(), loss, fails_in_evaluation

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if self.fails_in_evaluation and not self.training:
            raise ValueError("no loss in evaluation")
        scores = self.network(inputs)
        return {"loss": self.loss(scores, labels), "scores": scores}


def own_loss(output: dict[str, Tensor]) -> Tensor:
    return output["loss"]


@pytest.mark.parametrize("name", OTHERS)
def test_a_loss_of_the_module_that_is_not_a_mean_is_refused_for_micro_batches_alone(name: str) -> None:
    module = WithLoss(OTHERS[name])
    with pytest.raises(UnsupportedModel, match="'loss' .* of 4 samples of the example .* losses of 2 and 2"):
        membench.compile(module, own_loss, ((INPUTS, LABELS), ()), micro_batch=2)
    assert all(each.training for each in module.modules())
    membench.compile(module, own_loss, ((INPUTS, LABELS), ()))


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_that_the_module_computes_is_compiled_and_leaves_everything_as_it_was(name: str) -> None:
    module = WithLoss(MEANS[name])
    module.network.get_submodule("3").eval()
    before, random = copy.deepcopy(module), torch.get_rng_state()
    membench.compile(module, own_loss, ((INPUTS, LABELS), ()), micro_batch=2)
    check_same(state_of(module), state_of(before))
    assert torch.get_rng_state().equal(random)
    assert [each.training for each in module.modules()] == [each.training for each in before.modules()]


def test_a_module_that_fails_in_evaluation_mode_is_compiled_in_micro_batches() -> None:
    module = WithLoss(MEANS["a mean"], fails_in_evaluation=True)
    step = membench.compile(module, own_loss, ((INPUTS, LABELS), ()), micro_batch=2)
    assert torch.isfinite(step((INPUTS, LABELS), ()))


@pytest.mark.slow
def test_a_sum_is_refused_where_weights_are_in_host_memory() -> None:
    layers = [each for _ in range(6) for each in (nn.Linear(64, 64), nn.ReLU())]
    module, batch = nn.Sequential(*layers, nn.Linear(64, 4)), (torch.randn(6, 64), LABELS)

    def compiled(loss: Loss) -> MicroBatchedStep:
        step = membench.compile(module, loss, batch, strategy="joint", budget="0.1 MB", micro_batch=2)
        assert isinstance(step, MicroBatchedStep)
        return step

    assert all(backend.has_host_resident_blocks for backend in compiled(functional.cross_entropy).backends)
    with pytest.raises(UnsupportedModel, match="'loss' .* add up to a mean"):
        compiled(OTHERS["a sum"])
