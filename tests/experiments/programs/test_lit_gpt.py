"""lit-gpt's decoders: what they train, and that their additions change nothing before they are trained."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from experiments.validation.programs.lit_gpt import METHODS, ChunkedLoss, LitGpt

pytest.importorskip("bitsandbytes")
SMALL = {"length": 160, "layers": 3, "width": 64, "heads": 4, "vocabulary": 96}


def trained(**options: object) -> int:
    with torch.device("meta"):
        network = LitGpt(**{**SMALL, **options})
    return sum(weight.numel() for weight in network.parameters() if weight.requires_grad)


@pytest.mark.parametrize(
    ("method", "published"), [("lora", 2_097_152), ("adapter", 573_888), ("adapter_v2", 2_125_248)]
)
@pytest.mark.parametrize("quantization", [None, "nf4-dq"])
def test_as_many_weights_are_trained_as_published_for_stablelm(
    method: str, published: int, quantization: str | None
) -> None:
    stablelm = {"length": 8, "layers": 16, "width": 4096, "heads": 32, "vocabulary": 50688}
    assert trained(**stablelm, method=method, quantization=quantization) == published


def test_the_mlp_of_a_gated_network_is_frozen() -> None:
    assert trained(method="adapter", gated=True) == trained(method="adapter")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"groups": 2, "rms": True, "gated": True, "parallel": False, "bias": False, "rotary": 1.0},
        {"groups": 1, "shared_norm": True, "head_bias": True, "gelu": "tanh"},
    ],
)
def test_additions_that_are_not_trained_yet_change_nothing(options: dict[str, object]) -> None:
    tokens = torch.randint(96, (2, 160))
    weights: dict[str, torch.Tensor] = {}
    outputs = []
    for method in METHODS:
        network = LitGpt(**SMALL, **options, method=method).eval()
        for name, weight in network.state_dict().items():
            weight.copy_(weights.setdefault(name.replace("product.", ""), weight))
        outputs.append(torch.cat(network(tokens), dim=1))
    for other in outputs[1:]:
        torch.testing.assert_close(other, outputs[0], rtol=0.05, atol=0.05)


def test_logits_come_in_parts_of_128_tokens_in_single_precision() -> None:
    parts = LitGpt(**SMALL)(torch.randint(96, (2, 160)))
    assert [part.shape for part in parts] == [(2, 128, 96), (2, 32, 96)]
    assert {part.dtype for part in parts} == {torch.float32}


def test_the_loss_in_parts_is_the_mean_over_following_tokens() -> None:
    logits, targets = torch.randn(2, 160, 96), torch.randint(96, (2, 160))
    found = ChunkedLoss()(list(logits.split(128, dim=1)), targets)
    whole = functional.cross_entropy(logits[:, :-1].reshape(-1, 96), targets[:, 1:].reshape(-1))
    torch.testing.assert_close(found, whole)


def test_a_loss_holds_the_logits() -> None:
    loss = ChunkedLoss()
    loss([torch.randn(1, 4, 8)], torch.randint(8, (1, 4)))
    assert [part.shape for part in loss.held] == [(1, 3, 8)]
    assert isinstance(loss, nn.Module)


def test_a_single_group_that_is_not_copied_for_each_head_gives_the_same() -> None:
    tokens = torch.randint(96, (2, 24))
    options = {**SMALL, "groups": 1, "rotary": 1.0}
    network, other = LitGpt(**options).eval(), LitGpt(**options, copies_group=False).eval()
    other.load_state_dict(network.state_dict())
    torch.testing.assert_close(other(tokens)[0], network(tokens)[0], rtol=0.05, atol=0.05)


def test_under_fsdp_weights_of_layers_have_gradients_and_checkpointing_changes_nothing() -> None:
    found = []
    for fsdp in (False, True):
        torch.manual_seed(0)
        network = LitGpt(**SMALL, fsdp=fsdp)
        torch.manual_seed(1)
        tokens = torch.randint(96, (2, 160))
        ChunkedLoss()(network(tokens), tokens).backward()
        found.append({name: weight.grad for name, weight in network.named_parameters()})
    one, sharded = found
    for name, gradient in sharded.items():
        assert (gradient is not None) == name.startswith("layers.")
        assert one[name] is None or torch.equal(gradient, one[name])
