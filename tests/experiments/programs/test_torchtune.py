"""torchtune's Llama: its losses agree, and checkpointing and packing change nothing."""

import pytest
import torch

from experiments.validation.programs.torchtune import ChunkedLoss, Llama32, TokenLoss

SMALL = {"layers": 2, "width": 64, "heads": 4, "groups": 2, "inner": 96, "vocabulary": 128}


def loss_and_gradients(**options: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
    torch.manual_seed(0)
    network = Llama32(**SMALL, **options)
    tokens = torch.randint(128, (2, 32))
    loss = (ChunkedLoss if options.get("is_chunked") else TokenLoss)()(network(tokens), tokens)
    loss.backward()
    return loss.detach(), [weight.grad for weight in network.parameters() if weight.grad is not None]


@pytest.mark.parametrize("option", ["is_packed", "is_checkpointed"])
def test_packing_in_order_and_checkpointing_change_nothing(option: str) -> None:
    loss, gradients = loss_and_gradients()
    found, others = loss_and_gradients(**{option: True})
    assert torch.equal(found, loss)
    for gradient, other in zip(gradients, others, strict=True):
        assert torch.equal(gradient, other)


def test_the_loss_in_chunks_is_the_mean_over_all_tokens() -> None:
    loss, _ = loss_and_gradients()
    found, _ = loss_and_gradients(is_chunked=True)
    torch.testing.assert_close(found, loss, rtol=0.02, atol=0.02)


def test_llama_3_2_has_3_2_billion_weights() -> None:
    with torch.device("meta"):
        network = Llama32()
    assert sum(weight.numel() for weight in network.parameters()) == 3_212_749_824
