"""Sequences of several lengths, losses in chunks, and scans: captured, or refused with what to do."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AutoModelForCausalLM, MambaConfig, PretrainedConfig

import membench
from membench.core.errors import UnsupportedModel
from membench.core.step.workload import Workload
from membench.steps.plan import plan
from membench.strategies.pytorch import PyTorch
from tests.helpers.networks.contract import COST, Layer, as_run
from tests.helpers.networks.llama import small_llama_config
from tests.helpers.steps.checks import check_results_and_peak

VOCABULARY, WIDTH, LENGTHS = 32, 32, (8, 16)
LIMITS = torch.tensor([0, 8, 24], dtype=torch.int32)
TOKENS = sum(LENGTHS)


def _check_on_cpu(work: Workload) -> None:
    case = as_run(work)
    check_results_and_peak(case, plan(case.captured.graph, PyTorch(), COST, None))


def _predicted(module: nn.Module, loss: Any, inputs: Any, targets: Any) -> membench.Prediction:
    return membench.predict(module, loss, (inputs, targets), device="a100_80gb", precision="bf16")


def _chunked(chunks: list[Tensor], targets: Tensor) -> Tensor:
    """Sum of the chunks' cross entropies, as torchtune computes it (``CEWithChunkedOutputLoss``)."""
    losses = [
        nn.functional.cross_entropy(chunk.flatten(0, 1).float(), part.flatten(), ignore_index=-100, reduction="sum")
        for chunk, part in zip(chunks, targets.chunk(len(chunks), dim=1), strict=True)
    ]
    return torch.stack(losses).sum() / (targets != -100).sum()


def test_a_cross_entropy_in_chunks_is_exact() -> None:
    torch.manual_seed(0)
    network = Layer(
        lambda module, tokens: [module.head(part) for part in module.embedding(tokens).chunk(len(LENGTHS), dim=1)],
        embedding=nn.Embedding(VOCABULARY, 8),
        head=nn.Linear(8, VOCABULARY),
    )
    tokens = torch.randint(VOCABULARY, (2, 12))
    _check_on_cpu(Workload("chunked", network, _chunked, (tokens,), (tokens,)))
    assert _predicted(network, _chunked, tokens, tokens).fits


class Packed(nn.Module):
    """Attention within sequences that follow one another, by their limits."""

    def __init__(self, limits: Tensor | None = None) -> None:
        super().__init__()
        self.projection = nn.Linear(WIDTH, 3 * WIDTH)
        self.limits = limits

    def forward(self, inputs: Tensor, limits: Tensor | None = None) -> Tensor:
        heads = self.projection(inputs).view(-1, 3, 2, WIDTH // 2).unbind(1)
        within = self.limits if limits is None else limits
        longest = max(LENGTHS)
        output: Any = varlen_attn(*(each.contiguous() for each in heads), within, within, longest, longest)
        return output.flatten(1)


def test_packed_sequences_are_predicted_by_their_lengths() -> None:
    inputs = torch.randn(TOKENS, WIDTH)
    of_module = _predicted(Packed(LIMITS), nn.functional.mse_loss, inputs, inputs)
    of_batch = _predicted(Packed(), nn.functional.mse_loss, (inputs, LIMITS), inputs)
    assert of_module.priced_by_bytes == of_batch.priced_by_bytes == ()
    assert abs(of_batch.allocated_bytes - of_module.allocated_bytes) <= LIMITS.nbytes


def test_packed_positions_of_transformers_are_exact() -> None:
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(_llama())
    tokens = torch.randint(VOCABULARY, (1, TOKENS))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    network = Layer(
        lambda owner, tokens, positions: owner.module(input_ids=tokens, position_ids=positions), module=module
    )
    _check_on_cpu(Workload("packed", network, _loss, (tokens, positions), (tokens,)))


def _llama() -> PretrainedConfig:
    return small_llama_config(vocab_size=VOCABULARY, hidden_size=WIDTH)


def _loss(output: Any, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.logits.flatten(0, 1), targets.flatten())


def test_a_nested_tensor_is_refused_in_a_sentence() -> None:
    def nested(module: Layer, inputs: Tensor) -> Tensor:
        packed = torch.nested.nested_tensor_from_jagged(inputs, LIMITS.long())
        return module.layer(packed).values()  # type: ignore[no-any-return]

    network, inputs = Layer(nested, layer=nn.Linear(WIDTH, WIDTH)), torch.randn(TOKENS, WIDTH)
    with pytest.raises(UnsupportedModel, match=r"nested tensor.*pack the sequences: torch\.nn\.attention"):
        _predicted(network, nn.functional.mse_loss, inputs, inputs)


def test_a_kernel_that_is_not_an_operator_is_refused_in_a_sentence() -> None:
    """Its C++ takes the address of a tensor without data, as torch's does for a tensor among numbers."""
    network = Layer(
        lambda module, inputs: module.layer(inputs) * torch.tensor([0.5, inputs.mean()])[0], layer=nn.Linear(8, 8)
    )
    inputs = torch.randn(2, 8)
    with pytest.raises(UnsupportedModel, match=r"register the kernel: torch\.library\.custom_op"):
        membench.compile(network, nn.functional.mse_loss, (inputs, inputs))


@pytest.mark.slow
def test_mamba_without_its_kernels_is_a_loop_over_tokens() -> None:
    torch.manual_seed(0)
    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=1, state_size=4, use_cache=False)
    module, tokens = AutoModelForCausalLM.from_config(config), torch.randint(VOCABULARY, (1, 6))
    _check_on_cpu(Workload("mamba", module, _loss, (tokens,), (tokens,)))
    times = [_predicted(module, _loss, each, each).step_time_s for each in (tokens, tokens.repeat(1, 4))]
    assert times[1] > 2 * times[0]
