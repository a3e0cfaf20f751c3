"""Put a memory strategy under a network that transformers' Trainer trains, without an override, on this CPU.

The Trainer casts automatically, accumulates and clips gradients, evaluates, and resumes from its own checkpoint.
Training ends with the same bits as with the network itself. Needs `pip install 'membench[loops]'`.
"""

import copy
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import membench


def network() -> nn.Module:
    """Return a small GPT-2 with dropout."""
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 20}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM"))


def sentences() -> list[dict[str, Tensor]]:
    """Return tokens, of which the last ones do not count."""
    tokens = torch.randint(1, 20, (10, 12), generator=torch.Generator().manual_seed(1))
    labels = tokens.masked_fill(torch.arange(12) > torch.arange(6, 16).unsqueeze(1), -100)
    mask = (labels >= 0).long()
    return [{"input_ids": tokens[i], "attention_mask": mask[i], "labels": labels[i]} for i in range(len(tokens))]


def train(module: nn.Module, folder: str, checkpoint: Path | None = None) -> nn.Module:
    """Train, from a checkpoint on if there is one, with a checkpoint after each step; return the module."""
    options = TrainingArguments(
        folder,
        num_train_epochs=2,
        per_device_train_batch_size=4,  # the last batch is smaller
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        lr_scheduler_type="cosine",
        max_grad_norm=1.0,
        bf16=True,
        use_cpu=True,
        eval_strategy="epoch",
        save_steps=1,
        disable_tqdm=True,
        report_to="none",
    )
    trainer = Trainer(module, options, train_dataset=sentences(), eval_dataset=sentences())
    trainer.train(resume_from_checkpoint=checkpoint)
    return module


def main() -> None:
    """Train a network, the same one wrapped, and a wrapped one again from the checkpoint of its first step."""
    module = network()
    wrapped = membench.wrap(copy.deepcopy(module), strategy="layrub_hybrid", budget="20 MB")
    again = membench.wrap(copy.deepcopy(module), strategy="memonger")
    with TemporaryDirectory() as theirs, TemporaryDirectory() as ours, TemporaryDirectory() as third:
        plain, trained = train(module, theirs), train(wrapped, ours)
        resumed = train(again, third, Path(ours, "checkpoint-1"))
    print(f"{len(wrapped.wrapped_calls.steps)} kinds of calls")
    for name, other in (("wrapped", trained), ("resumed", resumed)):
        same = all(map(Tensor.equal, plain.state_dict().values(), other.state_dict().values()))
        print(f"{name}: the same weights, bit for bit" if same else f"{name}: other weights")


if __name__ == "__main__":
    main()
