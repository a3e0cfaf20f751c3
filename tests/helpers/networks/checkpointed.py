"""Modules with checkpointing: six libraries' ways, both kinds of regions, nested, selective, side effects."""

from collections.abc import Callable
from functools import partial
from typing import Any

import peft
import timm
import torch
import torchvision.models as zoo
import transformers
from lightning import LightningModule
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from membench.core.step.workload import Workload

CLASSES = 5
Build = Callable[[], nn.Module]


class Block(nn.Module):
    """A residual block with a normalization, dropout and a product with a number, which autograd keeps."""

    def __init__(self, *, batch_norm: bool = False, in_place: bool = False) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm = nn.BatchNorm1d(32) if batch_norm else nn.LayerNorm(32)
        self.relu, self.dropout = nn.ReLU(in_place), nn.Dropout(0.2)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.dropout(self.down(self.relu(self.norm(self.up(inputs))) * 0.5))


class Region(nn.Module):
    """A module that runs as a region, with options of `torch.utils.checkpoint.checkpoint`."""

    def __init__(self, inner: nn.Module, **options: Any) -> None:
        super().__init__()
        self.inner, self.options = inner, options

    def forward(self, inputs: Tensor) -> Tensor:
        return checkpoint(self.inner, inputs, **self.options)


class OfFunction(nn.Module):
    """Calls a function with itself and its inputs."""

    def __init__(self, function: Callable[..., Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(self, inputs)


class Lightning(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Block(batch_norm=True), nn.Linear(16, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(checkpoint(self.body, inputs, use_reentrant=False))


def _chain(*blocks: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), *blocks, nn.Linear(16, CLASSES))


def _regions(reentrant: bool) -> dict[str, Build]:
    """Return modules with regions of a kind."""
    region = partial(Region, use_reentrant=reentrant)
    first, second = nn.Linear(16, 16), nn.Linear(16, CLASSES)

    def two_results(self: OfFunction, inputs: Tensor) -> Tensor:
        def run(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
            return torch.tanh(one @ self.weight), other * 2

        one, other = checkpoint(run, self.first(inputs), inputs.sin(), use_reentrant=reentrant)
        return self.second(one * other)

    def overwritten(self: OfFunction, inputs: Tensor) -> Tensor:
        inputs = self.first(inputs)
        return self.second(checkpoint(lambda x: torch.tanh(x) + x, inputs, use_reentrant=reentrant).add_(1.0))

    def shared(self: OfFunction, inputs: Tensor) -> Tensor:
        for _ in range(3):
            inputs = checkpoint(self.block, inputs, use_reentrant=reentrant)
        return self.second(inputs)

    return {
        "dropout": lambda: _chain(region(Block()), region(Block())),
        "batch norm": lambda: _chain(region(Block(batch_norm=True)), region(Block(batch_norm=True))),
        "in place": lambda: _chain(region(Block(in_place=True)), region(Block(batch_norm=True, in_place=True))),
        "nested": lambda: _chain(
            region(nn.Sequential(region(Block()), Block(), region(Block(batch_norm=True)))), Block()
        ),
        "other random numbers": lambda: _chain(
            region(Block(), preserve_rng_state=False), region(Block(), preserve_rng_state=False)
        ),
        "sequential": lambda: OfFunction(
            lambda self, inputs: self.head(
                checkpoint_sequential(self.body, 2, self.stem(inputs), use_reentrant=reentrant)
            ),
            stem=nn.Linear(16, 16),
            body=nn.Sequential(Block(), Block(), Block(), Block()),
            head=nn.Linear(16, CLASSES),
        ),
        "two results": lambda: OfFunction(
            two_results, first=first, second=second, weight=nn.Parameter(torch.randn(16, 16) / 4)
        ),
        "overwritten afterwards": lambda: OfFunction(overwritten, first=first, second=second),
        "shared": lambda: OfFunction(shared, block=Block(batch_norm=True), second=second),
        "wrapper": lambda: _chain(
            checkpoint_wrapper(Block(), CheckpointImpl.REENTRANT if reentrant else CheckpointImpl.NO_REENTRANT), Block()
        ),
    }


def _save_products(_: Any, operator: Any, *__: Any, **___: Any) -> CheckpointPolicy:
    is_product = operator in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


def _selective(policy: Any, **options: bool) -> nn.Module:
    contexts = partial(create_selective_checkpoint_contexts, policy)
    return Region(Block(**options), use_reentrant=False, context_fn=contexts)


_OTHERS: dict[str, Build] = {
    "not reentrant within reentrant": lambda: _chain(
        Region(nn.Sequential(Region(Block(), use_reentrant=False), Block()), use_reentrant=True)
    ),
    "reentrant within not reentrant": lambda: _chain(
        Region(nn.Sequential(Region(Block(), use_reentrant=True), Block()), use_reentrant=False)
    ),
    "without early stop": lambda: _chain(
        Region(Block(), use_reentrant=False, early_stop=False),
        Region(Block(batch_norm=True), use_reentrant=False, early_stop=False),
    ),
    "without check": lambda: _chain(Region(Block(), use_reentrant=False, determinism_check="none")),
    "selective by policy": lambda: _chain(_selective(_save_products), _selective(_save_products, batch_norm=True)),
    "selective by list": lambda: _chain(_selective([torch.ops.aten.relu.default]), Block()),
    "lightning": Lightning,
}
VECTORS = {
    **{f"{name}, reentrant": build for name, build in _regions(True).items()},
    **{f"{name}, not reentrant": build for name, build in _regions(False).items()},
    **_OTHERS,
}
"""Modules that take vectors."""


def _of_timm(name: str, **options: Any) -> nn.Module:
    module = timm.create_model(name, num_classes=CLASSES, **options)
    module.set_grad_checkpointing()
    return module


IMAGES: dict[str, Build] = {
    "timm, residual": lambda: _of_timm("test_resnet.r160_in1k"),
    "timm, transformer": lambda: _of_timm("test_vit.r160_in1k", img_size=32, drop_rate=0.1),
    "timm, inverted residual": lambda: _of_timm("test_efficientnet.r160_in1k"),
    "torchvision, dense": lambda: zoo.DenseNet(
        8, (2, 2), num_init_features=8, memory_efficient=True, num_classes=CLASSES
    ),
}
"""Modules that take images."""


class _Logits(nn.Module):
    """A language model that is called with token ids and returns logits by token."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor) -> Tensor:
        return self.inner(input_ids=ids).logits.flatten(0, 1)


_SIZES: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 16, "intermediate_size": 32, "num_key_value_heads": 1, "num_hidden_layers": 2,
              "num_attention_heads": 2, "pad_token_id": 0},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2},
    "t5": {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0},
}  # fmt: skip


def _of_transformers(kind: str, **options: Any) -> nn.Module:
    settings = transformers.AutoConfig.for_model(kind, vocab_size=CLASSES, use_cache=False, **_SIZES[kind])
    is_t5 = kind == "t5"
    of_kind = transformers.AutoModelForSeq2SeqLM if is_t5 else transformers.AutoModelForCausalLM
    module = of_kind.from_config(settings).train()
    module.gradient_checkpointing_enable(**options)
    return module


def _t5() -> nn.Module:
    module = _of_transformers("t5")
    return OfFunction(
        lambda self, ids: self.inner(input_ids=ids, decoder_input_ids=ids).logits.flatten(0, 1), inner=module
    )


def _with_lora(dora: bool, **options: Any) -> nn.Module:
    module = _of_transformers("llama", **options)
    adapters = peft.LoraConfig(
        r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.0 if dora else 0.1, use_dora=dora
    )
    found = peft.get_peft_model(module, adapters).train()
    found.enable_input_require_grads()
    return _Logits(found)


_REENTRANT = {"gradient_checkpointing_kwargs": {"use_reentrant": True}}
TOKENS: dict[str, Build] = {
    "transformers, Llama": lambda: _Logits(_of_transformers("llama")),
    "transformers, Llama, reentrant": lambda: _Logits(_of_transformers("llama", **_REENTRANT)),
    "transformers, GPT-2": lambda: _Logits(_of_transformers("gpt2")),
    "transformers, GPT-2, reentrant": lambda: _Logits(_of_transformers("gpt2", **_REENTRANT)),
    "transformers, T5": _t5,
    "peft, LoRA": lambda: _with_lora(dora=False),
    "peft, LoRA, reentrant": lambda: _with_lora(dora=False, **_REENTRANT),
    "peft, DoRA": lambda: _with_lora(dora=True),
    "peft, DoRA, reentrant": lambda: _with_lora(dora=True, **_REENTRANT),
}
"""Modules that take token ids."""

CHECKPOINTED = {**VECTORS, **IMAGES, **TOKENS}


def workload_of(name: str) -> Workload:
    """Return the step of a module by its name in `CHECKPOINTED`."""
    torch.manual_seed(0)
    module = CHECKPOINTED[name]()
    if name in TOKENS:
        ids = torch.randint(CLASSES, (2, 8))
        return Workload(name, module, nn.functional.cross_entropy, (ids,), (ids.flatten(),))
    inputs = torch.randn(4, 16) if name in VECTORS else torch.randn(2, 3, 32, 32)
    targets = torch.randint(CLASSES, (len(inputs),))
    return Workload(name, module, nn.functional.cross_entropy, (inputs,), (targets,))
