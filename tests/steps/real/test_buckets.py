"""Sequences padded to buckets: one capture for each bucket, and the results of the sequences as they are."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

import membench
from membench.core.errors import MembenchError
from membench.steps.real.shaped_step import ShapedStep

VALUES = {"input_ids": 0, "attention_mask": 0, "labels": -100}
LENGTHS = (8, 12)


def gpt2() -> nn.Module:
    """Return a network with causal attention."""
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 20, "n_positions": 12}
    without_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(**sizes, **without_dropout, use_cache=False))


def bert() -> nn.Module:
    """Return a network whose attention reads all positions that the mask leaves in."""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
    config = BertConfig(**sizes, vocab_size=20, max_position_embeddings=12)
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    return BertForMaskedLM(config)


def sequences(length: int) -> dict[str, Tensor]:
    """Return three sequences, of which the last one is shorter, as a tokenizer pads them."""
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(1, 20, (3, length), generator=generator)
    mask = torch.ones_like(tokens)
    mask[2, length - 2 :] = 0
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def gradients(module: nn.Module) -> list[Tensor]:
    made = [weight.grad.clone() for weight in module.parameters() if weight.grad is not None]
    module.zero_grad()
    return made


def networks(build: Any) -> tuple[nn.Module, nn.Module]:
    """Return the same network twice, in double precision, where rounding is small."""
    torch.manual_seed(0)
    module = build().double()
    return module, copy.deepcopy(module)


@pytest.mark.slow
@pytest.mark.parametrize("build", [gpt2, bert])
def test_a_wrapped_network_has_one_capture_for_each_bucket_and_the_same_gradients(build: Any) -> None:
    plain, module = networks(build)
    wrapped = membench.wrap(module, strategy="memonger")
    for length in (3, 8, 6, 9, 12, 5):
        expected = plain(**sequences(length))
        expected.loss.backward()
        found = wrapped(**membench.pad_to_bucket(sequences(length), LENGTHS, VALUES))
        found.loss.backward()
        torch.testing.assert_close(found.loss, expected.loss)
        counts = sequences(length)["attention_mask"].bool()
        torch.testing.assert_close(found.logits[:, :length][counts], expected.logits[counts])
        torch.testing.assert_close(gradients(module), gradients(plain))
    assert len(wrapped.wrapped_calls.steps) == len(LENGTHS)


def test_a_compiled_step_of_any_shape_has_one_capture_for_each_bucket_and_the_same_gradients() -> None:
    plain, module = networks(bert)

    def loss(output: Any, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())

    def batch(length: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        padded = membench.pad_to_bucket(sequences(length), LENGTHS, VALUES)
        return {name: padded[name] for name in ("input_ids", "attention_mask")}, {"labels": padded["labels"]}

    step = membench.compile(module, loss, batch(8), shapes="any", strategy="memonger")
    for length in (5, 11, 10):
        expected = plain(**sequences(length)).loss
        expected.backward()
        torch.testing.assert_close(step(*batch(length)), expected.detach())
        torch.testing.assert_close(gradients(module), gradients(plain))
    assert isinstance(step, ShapedStep) and len(step.steps) == len(LENGTHS)


@given(length=st.integers(1, 9), lengths=st.sets(st.integers(9, 20), min_size=1), dim=st.sampled_from([1, -2]))
def test_padding_follows_the_sequence_and_reaches_the_smallest_bucket(length: int, lengths: set[int], dim: int) -> None:
    rows = torch.rand(2, length, 3)
    padded = membench.pad_to_bucket({"rows": rows, "other": rows}, list(lengths), {"rows": 7.0}, dim=dim)
    assert padded["rows"].shape == (2, min(lengths), 3)
    assert padded["rows"][:, :length].equal(rows) and (padded["rows"][:, length:] == 7).all()
    assert padded["other"] is rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": (2, 3)}, "'tokens' has length 4, and the longest bucket 3; cut it, or add a bucket"),
        ({"lengths": ()}, "one or more positive numbers"),
        ({"values": {"mask": 0}}, "'mask' is to be padded .* but is None in the batch, which has tokens"),
        ({"dim": 2}, r"'tokens' is to be padded along dimension 2, but is of shape \(2, 4\)"),
    ],
)
def test_what_cannot_be_padded_is_refused(options: dict[str, Any], message: str) -> None:
    arguments = {"lengths": (8,), "values": {"tokens": 0}} | options
    with pytest.raises(MembenchError, match=message):
        membench.pad_to_bucket({"tokens": torch.zeros(2, 4)}, **arguments)
