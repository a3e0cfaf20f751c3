"""Networks of transformers: their published sizes, and tiny ones trained exactly as in plain PyTorch."""

import copy
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import membench
from membench.capture.capture import capture
from membench.core.configuration import names, read
from membench.core.errors import MembenchError
from membench.core.graph.task_graph import Role
from membench.models.hugging_face import OwnLoss, network
from membench.steps.plan import plan
from membench.strategies.eager import Eager
from membench.sweep.cells.model import Model
from tests.helpers.planning.graphs import COST, held

pytestmark = pytest.mark.usefixtures("offline")
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "bert_base": 109_514_298,
    "bert_large": 335_174_458,
    "t5_small": 60_506_624,
    "opt_1_3b": 1_315_758_080,
    "llama_1b": 1_235_814_400,
    "llama_7b": 6_738_415_616,
    "llama_13b": 13_015_864_320,
    "llama_8b": 8_030_261_248,
    "llama_70b": 68_976_648_192,
    "qwen2_14b": 14_770_033_664,
    "qwen3_14b": 14_768_307_200,
}
"""Parameters of the published weights; BERT's are those with the head that predicts masked words."""
LARGE = {"gpt2_xl", "gpt2_large", "opt_1_3b", "bert_large"}
LARGE |= {name for name in PUBLISHED if name.startswith(("llama", "qwen"))}
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
TINY: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2},
    "bert": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    "t5": {"d_model": 32, "d_ff": 64, "d_kv": 16, "num_layers": 2, "num_heads": 2},
    "llama": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "attention_dropout": 0.1,
    },
    "opt": {
        "hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2,
    },
}  # fmt: skip
NO_DROPOUT: dict[str, dict[str, Any]] = {
    "gpt2": {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
    "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "t5": {"dropout_rate": 0.0},
    "llama": {"attention_dropout": 0.0},
    "opt": {"dropout": 0.0},
}
VOCABULARY, SAMPLES, TOKENS = 61, 4, 9
STRATEGIES = ("eager", "memonger", "vdnn_all", "layrub_hybrid", "superneurons")


def tiny(model_type: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return network(model_type, **{"vocab_size": VOCABULARY, **SPECIAL, **TINY[model_type], **options})


def batch(seed: int) -> dict[str, Tensor]:
    """Return tokens, the last four of the first sample masked."""
    torch.manual_seed(seed)
    ids, labels = (torch.randint(3, VOCABULARY, (SAMPLES, TOKENS)) for _ in range(2))
    mask = torch.ones_like(ids)
    mask[0, -4:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def check_exact(module: nn.Module, strategy: str, *, masked: bool) -> None:
    """Check a step's loss and gradients against plain PyTorch, bit for bit, for two batches."""
    plain = copy.deepcopy(module)
    batches = batch(1), batch(2)
    if not masked:
        for each in batches:
            del each["attention_mask"]
    step = membench.compile(module, OwnLoss(), (batches[0], ()), strategy=strategy)
    for each in batches:
        torch.manual_seed(3)
        expected = plain(**each).loss
        expected.backward()
        torch.manual_seed(3)
        assert torch.equal(step(each, ()), expected)
        for (name, weight), reference in zip(module.named_parameters(), plain.parameters(), strict=True):
            assert torch.equal(weight.grad, reference.grad), name
        module.zero_grad()
        plain.zero_grad()


def test_every_configuration_is_here() -> None:
    assert {name for name in names("model") if "inputs" in read("model", name)} == set(PUBLISHED)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.exhaustive if name in LARGE else ()) for name in PUBLISHED]
)
def test_a_network_is_captured_with_the_published_parameters(name: str) -> None:
    model = read("model", name) | {"sequence_length": 8}
    graph = capture(Model.from_configuration(model).workload(2, seed=0, device="meta")).graph
    assert held(graph, Role.WEIGHT) == held(graph, Role.WEIGHT_GRADIENT) == 4 * PUBLISHED[name]
    assert plan(graph, Eager(), COST, None).peak_bytes > 2 * 4 * PUBLISHED[name]


@pytest.mark.exhaustive
def test_a_decoder_of_seven_billion_parameters_is_planned_within_a_minute_and_4_gb() -> None:
    """In a process of its own: capture, plan and simulation of a whole sequence."""
    program = (
        "import resource, torch, membench\n"
        "from membench.sweep.cells.model import Model\n"
        "work = Model.named('llama_7b').workload(1, seed=0, device='meta')\n"
        "batch = work.inputs, work.targets\n"
        "step = membench.compile(work.module, work.loss, batch, backend='simulated', device='mi300x')\n"
        "print(step.predicted_peak_bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    peak_bytes, resident_kib = map(int, done.stdout.split())
    assert time.monotonic() - started < 60
    assert resident_kib < 4 * 2**20
    assert peak_bytes > 2 * 4 * PUBLISHED["llama_7b"]


@pytest.mark.parametrize(
    ("model_type", "strategy"),
    [
        pytest.param(model_type, strategy, marks=() if position == index else pytest.mark.exhaustive)
        for index, model_type in enumerate(TINY)
        for position, strategy in enumerate(STRATEGIES)
    ],
)
def test_a_step_with_dropout_is_exact(model_type: str, strategy: str) -> None:
    check_exact(tiny(model_type), strategy, masked=True)


@pytest.mark.parametrize(
    ("use_cache", "masked"),
    [
        (True, True),
        (False, False),
        *(pytest.param(one, not one, marks=pytest.mark.exhaustive) for one in (True, False)),
    ],
)
@pytest.mark.parametrize("model_type", TINY)
def test_a_step_without_dropout_runs_the_same_attention(model_type: str, masked: bool, use_cache: bool) -> None:
    """Without a mask attention is causal in its kernel, which rounds differently from a mask that is given to it."""
    module = tiny(model_type, use_cache=use_cache, **NO_DROPOUT[model_type])
    check_exact(module, "eager", masked=masked)


def test_the_loss_may_read_the_output_and_targets() -> None:
    def criterion(output: Any, labels: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())

    module = tiny("bert")
    plain = copy.deepcopy(module)
    inputs = batch(1)
    labels = inputs.pop("labels")
    step = membench.compile(module, criterion, (inputs, labels), micro_batch=2)
    torch.manual_seed(3)
    loss = step(inputs, labels)
    assert loss.isfinite()
    assert plain.bert.embeddings.word_embeddings.weight.shape == (VOCABULARY, 32)


def test_inference_returns_the_output_of_the_module() -> None:
    module = tiny("bert").eval()
    inputs = batch(1)
    with torch.no_grad():
        expected = module(**inputs)
    found = membench.compile(module, None, (inputs, ()))(inputs)
    assert type(found) is type(expected)
    assert torch.equal(found.logits, expected.logits)


def test_a_network_without_labels_has_no_loss() -> None:
    inputs = {name: value for name, value in batch(1).items() if name != "labels"}
    with pytest.raises(MembenchError, match="has no loss; give labels among its inputs"):
        membench.compile(tiny("gpt2"), OwnLoss(), (inputs, ()))


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("gpt22", "'gpt22' is neither a model type of transformers .* did you mean 'gpt2'"),
        ("encodec", "has no head for tokens or images on a 'encodec'"),
    ],
)
def test_what_transformers_has_not_is_refused(model_type: str, message: str) -> None:
    with pytest.raises(MembenchError, match=message):
        network(model_type)


def test_without_transformers_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MembenchError, match=r"pip install 'membench\[zoo\]'"):
        network("gpt2")
