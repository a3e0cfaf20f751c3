"""Caches of keys and values: decoding changes the caller's cache, with plain PyTorch's bits and memory."""

import copy
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, LlamaForCausalLM, StaticCache

import membench
from membench.core.errors import MembenchError, UnsupportedModel
from membench.core.graph.task_graph import Mode, Role
from membench.core.libraries.torch_internals import tree_leaves
from membench.core.step.opened import opened
from membench.execution.measurement import cpu_peak_bytes
from membench.steps.real.compiled_step import CompiledStep
from membench.strategies.base import strategies
from tests.helpers.networks.llama import small_llama_config

CONFIG = small_llama_config(
    vocab_size=50, hidden_size=32, num_hidden_layers=3, max_position_embeddings=32, use_cache=True
)
CACHES = {
    "dynamic": partial(DynamicCache, config=CONFIG),
    "static": partial(StaticCache, config=CONFIG, max_cache_len=12),
}
PLANNED = [name for name in strategies(Mode.INFERENCE) if name != "auto"]  # it plans all of them


@cache
def network() -> nn.Module:
    torch.manual_seed(0)
    return LlamaForCausalLM(CONFIG).eval()


@cache
def filled(kind: str) -> dict[str, Any]:
    """Return the inputs of a step of one token after five."""
    ids = torch.randint(50, (2, 6))
    with torch.no_grad():
        kept = network()(input_ids=ids[:, :-1], past_key_values=CACHES[kind](), use_cache=True).past_key_values
    return {"input_ids": ids[:, -1:].contiguous(), "past_key_values": kept}


def inputs_of(kind: str) -> dict[str, Any]:
    return copy.deepcopy(filled(kind))


def check_equal(ours: Any, theirs: Any) -> None:
    for one, other in zip(tree_leaves(opened(ours)), tree_leaves(opened(theirs)), strict=True):
        if isinstance(one, Tensor):
            assert one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()
        else:
            assert one == other


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("strategy", PLANNED)
def test_a_step_that_decodes_is_exact_and_changes_the_cache(strategy: str, kind: str) -> None:
    step = membench.compile(network(), None, (inputs_of(kind), ()), strategy=strategy, backend="cpu")
    assert isinstance(step, CompiledStep)
    with torch.no_grad():
        for _ in range(2):  # the second step runs its tasks in runs
            ours, theirs = inputs_of(kind), inputs_of(kind)
            check_equal(step(ours), network()(**theirs))
            check_equal(ours, theirs)
    assert step.measure().peak_bytes == step.predicted_peak_bytes
    step.close()


@pytest.mark.parametrize("kind", CACHES)
def test_the_predicted_peak_is_that_of_plain_pytorch(kind: str) -> None:
    module = network()
    step = membench.compile(module, None, (inputs_of(kind), ()), strategy="pytorch", backend="cpu")
    with torch.no_grad():
        peak_bytes = cpu_peak_bytes(lambda: module(**inputs_of(kind)))
    weights = {id(each): each.nbytes for each in (*module.parameters(), *module.buffers())}
    assert sum(weights.values()) + peak_bytes == step.predicted_peak_bytes


def test_a_dynamic_cache_is_given_up_layer_by_layer_and_a_static_one_is_written_in_place() -> None:
    predict = partial(membench.predict, network(), None, device="a100_80gb")
    dynamic, static = (predict((inputs_of(kind), ())) for kind in CACHES)
    one_token_bytes = 2 * 3 * 2 * 2 * 8 * 4  # keys and values, layers, sequences, heads, width
    assert dynamic.cache_bytes == 6 * one_token_bytes
    assert static.cache_bytes == 12 * one_token_bytes + 3 * 8  # the tokens so far
    assert dynamic.parts_bytes["output"] == 6 * one_token_bytes
    assert dynamic.parts_bytes["inputs"] < one_token_bytes, "the old cache is gone when the step holds the most"
    graph = membench.compile(network(), None, (inputs_of("dynamic"), ()), backend="cpu").schedule.graph
    assert len([block for block in graph.blocks if block.role is Role.GIVEN_UP]) == 6


def test_a_prompt_fills_an_empty_cache_of_the_caller() -> None:
    ids = torch.randint(50, (2, 5))
    for kind, make in CACHES.items():
        ours, theirs = ({"input_ids": ids, "past_key_values": make()} for _ in range(2))
        step = membench.compile(
            network(), None, ({"input_ids": ids, "past_key_values": make()}, ()), strategy="pytorch"
        )
        with torch.no_grad():
            check_equal(step(ours), network()(**theirs))
        check_equal(ours, theirs)
        assert step.measure().peak_bytes == step.predicted_peak_bytes, kind


def test_each_length_has_a_step_of_its_own() -> None:
    step = membench.compile(network(), None, (inputs_of("dynamic"), ()), strategy="eager", shapes="any")
    ours, theirs = inputs_of("dynamic"), inputs_of("dynamic")
    with torch.no_grad():
        for _ in range(3):
            output, expected = step(ours), network()(**theirs)
            check_equal(output, expected)
            token = output.logits[:, -1].argmax(-1, keepdim=True)
            ours, theirs = ({**each, "input_ids": token} for each in (ours, theirs))


def test_a_step_that_trains_may_not_fill_a_cache() -> None:
    ids = torch.randint(50, (2, 5))
    inputs = {"input_ids": ids, "labels": ids, "past_key_values": DynamicCache(config=CONFIG)}
    with pytest.raises(UnsupportedModel, match="changes an object among its inputs.*use_cache=False"):
        membench.predict(network(), lambda output: output.loss, (inputs, ()), device="a100_80gb")


def test_a_cache_of_another_length_is_refused() -> None:
    step = membench.compile(network(), None, (inputs_of("dynamic"), ()), strategy="eager")
    longer = inputs_of("dynamic")
    step(longer)
    with pytest.raises(MembenchError, match=r"inputs\['past_key_values'\].layers\[0\].keys is a cpu tensor of shape"):
        step(longer)


def test_a_wrapped_module_returns_a_cache_and_is_not_given_one() -> None:
    ids = torch.randint(50, (2, 5))
    wrapped = membench.wrap(network(), strategy="eager", backend="cpu")
    with torch.no_grad():
        check_equal(wrapped(input_ids=ids, use_cache=True), network()(input_ids=ids, use_cache=True))
        empty = DynamicCache(config=CONFIG)
        with pytest.raises(UnsupportedModel, match=r"inputs\['past_key_values'\].*puts tensors into this DynamicCache"):
            wrapped(input_ids=ids, past_key_values=empty)
        assert empty.get_seq_length() == 0 and empty.layers[0].keys is None
        with pytest.raises(MembenchError, match=r"inputs\['past_key_values'\] is a DynamicCache, with a Tensor in it"):
            wrapped(**inputs_of("dynamic"))


@pytest.mark.parametrize("kind", CACHES)
def test_a_step_runs_on_its_example_any_number_of_times(kind: str) -> None:
    step = membench.compile(network(), None, (inputs_of(kind), ()), strategy="pytorch", backend="cpu")
    with torch.no_grad():
        expected = network()(**inputs_of(kind))
        for _ in range(8):  # more than the rest of the static cache has room for
            check_equal(step(step.workload.inputs), expected)
