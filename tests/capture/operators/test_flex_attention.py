"""flex_attention: compiled, one kernel without the scores; uncompiled, on the CPU, its operators."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AutoModelForCausalLM

import membench
from membench.capture.capture import capture
from membench.capture.trace import ANY_GPU
from membench.core.errors import MembenchError
from membench.core.graph.task_graph import Kind, Task
from membench.core.step.workload import Workload
from tests.helpers.kernels.compiler import with_compiler
from tests.helpers.networks.llama import small_llama_config

SAMPLES, TOKENS, HEADS, HEAD = 2, 256, 2, 16
WIDTH = HEADS * HEAD
with with_compiler():
    compiled = torch.compile(flex_attention)


def _causal(sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key


CAUSAL = create_block_mask(_causal, None, None, TOKENS, TOKENS, device="cpu")
"""Three of its four blocks of 128 x 128 pairs are computed."""


class Attention(nn.Module):
    """Args:
    mask: None: made in each step, as a mask that depends on the batch is.
    """

    def __init__(self, function: Callable[..., Any], mask: BlockMask | None = CAUSAL) -> None:
        super().__init__()
        self.projection = nn.Linear(WIDTH, 3 * WIDTH)
        self.slopes = nn.Parameter(torch.ones(HEADS))
        self.function, self.mask = function, mask

    def forward(self, inputs: Tensor) -> Tensor:
        samples, tokens, _ = inputs.shape
        heads = self.projection(inputs).view(samples, tokens, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4)
        mask = self.mask or create_block_mask(_causal, None, None, tokens, tokens, device=inputs.device)
        output: Tensor = self.function(*heads, block_mask=mask)
        return output.transpose(1, 2).flatten(2)


class Sloped(Attention):
    """With a trained slope for each head, as in ALiBi."""

    def forward(self, inputs: Tensor) -> Tensor:
        def score(score: Tensor, sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return score + self.slopes[head] * (key - query)

        self.function = partial(compiled, score_mod=score)
        return super().forward(inputs)


def _inputs() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(SAMPLES, TOKENS, WIDTH)


def _tasks(module: nn.Module) -> list[Task]:
    inputs = _inputs()
    graph = capture(Workload("w", module, nn.functional.mse_loss, (inputs,), (inputs,)), ANY_GPU).graph
    return [task for task in graph.tasks if "flex_attention" in task.name]


def test_compiled_it_is_a_task_forward_and_one_backward() -> None:
    forward, backward = _tasks(Attention(compiled))
    assert forward.kind is backward.kind is Kind.ATTENTION
    pairs = SAMPLES * HEADS * TOKENS * TOKENS * 3 // 4
    assert forward.operations == 2 * pairs * 2 * HEAD
    assert backward.operations == 2 * pairs * 5 * HEAD


def test_it_holds_the_output_and_two_numbers_for_each_query() -> None:
    inputs = _inputs()
    work = Workload("w", Attention(compiled), nn.functional.mse_loss, (inputs,), (inputs,))
    graph = capture(work, ANY_GPU).graph
    [forward] = [task for task in graph.tasks if task.name.endswith(":flex_attention")]
    per_query_bytes = SAMPLES * HEADS * TOKENS * 4
    sizes = [graph.blocks[block].size_bytes for block in forward.creates]
    assert sizes == [per_query_bytes * HEAD, per_query_bytes, per_query_bytes]
    assert max(block.size_bytes for block in graph.blocks) < SAMPLES * HEADS * TOKENS * TOKENS * 4


def test_a_mask_that_is_made_in_the_step_is_as_sparse_if_it_is_the_same_in_every_step() -> None:
    assert [task.operations for task in _tasks(Attention(compiled, None))] == [
        task.operations for task in _tasks(Attention(compiled))
    ]


def test_a_mask_that_depends_on_the_batch_leaves_out_no_block() -> None:
    def within_documents(module: Attention, inputs: Tensor) -> Tensor:
        documents = inputs[0, :, 0] > 0

        def same(sample: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return documents[query] == documents[key]

        module.mask = create_block_mask(same, None, None, TOKENS, TOKENS, device=inputs.device)
        return Attention.forward(module, inputs)

    class Documents(Attention):
        forward = within_documents

    forward, _ = _tasks(Documents(compiled))
    assert forward.operations == 2 * SAMPLES * HEADS * TOKENS * TOKENS * 2 * HEAD


def test_a_tensor_that_a_score_reads_is_an_argument_and_gets_its_gradient() -> None:
    module, inputs = Sloped(compiled), _inputs()
    step = capture(Workload("w", module, nn.functional.mse_loss, (inputs,), (inputs,)), ANY_GPU)
    forward, backward = (task for task in step.graph.tasks if "flex_attention" in task.name)
    assert step.weights["slopes"] in forward.reads
    gradient = dict(step.graph.gradients)["slopes"]
    assert gradient is not None
    assert gradient.block in backward.creates


def test_it_costs_less_than_attention_that_holds_the_scores() -> None:
    inputs = _inputs()
    peaks = []
    for function in (compiled, nn.functional.scaled_dot_product_attention):
        module = Attention(function)
        if function is not compiled:
            module.function = lambda query, key, value, block_mask: (query @ key.mT).softmax(-1) @ value
        answer = membench.predict(
            module, nn.functional.mse_loss, (inputs, inputs), device="a100_80gb", precision="bf16"
        )
        peaks.append(answer.allocated_bytes)
    assert peaks[0] < peaks[1]


@pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask")
def test_a_network_of_transformers_takes_it() -> None:
    config = small_llama_config()
    module = AutoModelForCausalLM.from_config(config, attn_implementation="flex_attention")
    tokens = torch.zeros(1, TOKENS, dtype=torch.long)
    graph = capture(
        Workload("w", module, lambda output, _: output.logits.float().mean(), (tokens,), (tokens,)), ANY_GPU
    ).graph
    forward = next(task for task in graph.tasks if task.name.endswith(":flex_attention"))
    assert forward.operations == 2 * 4 * TOKENS * TOKENS * 3 // 4 * 2 * 16


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_uncompiled_inference_on_the_cpu_gives_the_bits_of_plain_pytorch() -> None:
    module, inputs = Attention(flex_attention).eval(), _inputs()
    step = membench.compile(module, None, (inputs, ()))
    with torch.no_grad():
        assert torch.equal(step(inputs), module(inputs))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_what_would_be_another_program_is_refused() -> None:
    inputs = _inputs()
    with pytest.raises(MembenchError, match=r"call torch\.compile\(flex_attention\)"):
        membench.predict(Attention(flex_attention), nn.functional.mse_loss, (inputs, inputs), device="a100_80gb")
    with pytest.raises(MembenchError, match=r"predict it \(membench\.predict\), or call it uncompiled"):
        membench.compile(Attention(compiled).eval(), None, (inputs, ()))
    with pytest.raises(MembenchError, match="does not support backward on CPU"):  # in plain PyTorch too
        membench.compile(Attention(flex_attention), nn.functional.mse_loss, (inputs, inputs))
