"""Questions to the library and its commands, and their answers as text: predictions, plans and advices.

    python -m tests.helpers.answers

writes `ANSWERS`, a line for each question. A change of the code that is to change no answer leaves the file as it is.
"""

import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchvision.models import resnet18

import membench
from membench.cli.main import main as command
from membench.core.errors import MembenchError
from membench.models.llama import Llama

ANSWERS = Path(__file__).parents[1] / "steps" / "answers.jsonl"
_FOLDER = re.compile(r"outputs/[0-9]\S*")
"""A folder that is named for the time."""
DIGITS = 10
"""Of a number that is kept: the last ones depend on the processor."""
SEED = 66
TOKENS = 16

Step = tuple[nn.Module, Callable[..., Tensor], tuple[Any, Any]]


class _Recomputed(nn.Module):
    """Layers of which each runs again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        layer = [nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1)]
        self.blocks = nn.ModuleList(nn.Sequential(*layer) for _ in range(4))

    def forward(self, features: Tensor) -> Tensor:
        for block in self.blocks:
            features = checkpoint(block, features, use_reentrant=False)
        return features


def _of_classes(module: nn.Module, *shape: int, classes: int = 10) -> Step:
    return module, nn.functional.cross_entropy, (torch.empty(shape), torch.zeros(shape[0], dtype=torch.long))


def _convolutional() -> Step:
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return _of_classes(nn.Sequential(*layers, nn.Linear(8 * 16 * 16, 10)), 8, 3, 32, 32)


def _perceptron() -> Step:
    layers = [layer for _ in range(3) for layer in (nn.Linear(128, 128), nn.ReLU())]
    return _of_classes(nn.Sequential(*layers, nn.Linear(128, 10)), 32, 128)


def _recurrent() -> Step:
    class LastOfLstm(nn.LSTM):
        def forward(self, features: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(features)[0][:, -1]

    return _of_classes(LastOfLstm(16, 10, num_layers=2, batch_first=True), 8, 12, 16)


def _decoder() -> Step:
    module = Llama(layers=4, width=64, heads=4, groups=2, inner=128, vocabulary=96, length=TOKENS)
    tokens = torch.zeros(4, TOKENS, dtype=torch.long)

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return module, loss, (tokens, tokens)


NETWORKS: Mapping[str, Callable[[], Step]] = {
    "perceptron": _perceptron,
    "convolutional": _convolutional,
    "resnet18": lambda: _of_classes(resnet18(num_classes=10), 16, 3, 64, 64),
    "recurrent": _recurrent,
    "decoder": _decoder,
    "recomputed": lambda: (_Recomputed(), lambda out: out.square().mean(), (torch.empty(32, 64), ())),
}


@cache
def _step(network: str) -> Step:
    torch.manual_seed(0)
    with torch.device("meta"):
        return NETWORKS[network]()


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        call: ``"predict"``, ``"compile"`` or ``"advise"`` of the library, or ``"membench"``, a command.
        network: one of `NETWORKS`; empty for a command.
        options: options of the call, as JSON has them; of a command its words, under ``"words"``.
    """

    call: str
    network: str
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        words = self.options.get("words") or [f"{name}={value}" for name, value in self.options.items()]
        return " ".join([self.call, self.network, *words])


def answer(question: Question) -> Any:
    """Return what a question is answered, as JSON has it; of a refusal its class and text."""
    try:
        if question.call == "membench":
            return _printed(question.options["words"])
        module, loss, batch = _step(question.network)
        asked = getattr(membench, question.call)(module, loss, batch, **question.options)
        return _kept(_of_step(asked) if question.call == "compile" else asked)
    except MembenchError as error:
        return f"{type(error).__name__}: {error}"


def _of_step(step: Any) -> dict[str, Any]:
    runs = step.plan
    return {
        "step_time_s": step.step_time_s,
        "runs": [
            {"samples": run.samples, "count": run.count, "peak_bytes": run.schedule.peak_bytes,
             "instructions": len(run.schedule.instructions), "decisions": run.schedule.decisions}
            for run in runs
        ],
    }  # fmt: skip


def _printed(words: list[str]) -> dict[str, Any]:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = command(words)
    return {"exit": code, "lines": _FOLDER.sub("outputs/...", output.getvalue()).splitlines()}


def _kept(value: Any) -> Any:
    """Return what JSON has in a value's place: public fields of nouns, numbers of `DIGITS` digits."""
    if isinstance(value, Enum) or value is None or isinstance(value, str | bool | int):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if is_dataclass(value):
        return {each.name: _kept(getattr(value, each.name)) for each in fields(value) if not each.name.startswith("_")}
    if isinstance(value, Mapping):
        return {str(key): _kept(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_kept(each) for each in value]
    return str(value)


# ---- what is asked ----------------------------------------------------------------------------------


DEVICES = ("rtx3060", "rtx4090", "t4", "v100", "a100_40gb", "h100", "mi300x")
PRECISIONS = (None, "fp32", "tf32", "bf16", "amp_bf16", "amp_fp16")
OPTIMIZERS = (None, "sgd", "adamw", "adamw8bit", "adafactor")
STRATEGIES = ("pytorch", "eager", "layrub_hybrid", "vdnn_all", "modnn", "joint", "memonger", "dtr",
              "rotor", "capuchin", "superneurons", "zero_offload", "zero_infinity", "gist", "geeps")  # fmt: skip
BUDGETS = {"perceptron": (300_000, 500_000), "convolutional": (900_000, 1_200_000),
           "resnet18": ("100 MB", 160_000_000), "recurrent": (100_000, 200_000), "decoder": (2_000_000, "4 MB"),
           "recomputed": (250_000, "1 MB")}  # fmt: skip
PARALLEL = ({"fsdp": 8}, {"dp": 2, "fsdp": 4}, {"dp": 8}, {"fsdp": 4, "tp": 2}, {"fsdp": 4, "cp": 2},
            {"pp": 2, "fsdp": 4}, {"pp": 4, "dp": 2}, {"fsdp": 3})  # fmt: skip
CLUSTERS = ("dgx_a100_80gb", "dgx_h100", "rtx4090x8", "mi300x8")
COUNTS = {"predict": 110, "ranks": 50, "compile": 70, "advise": 14, "cluster": 6}
COMMANDS = (
    "predict model=resnet50 device=rtx4090 batch_size=64 precision=amp_bf16 optimizer=adamw",
    "predict model=vit_b_16 device=t4 batch_size=32 strategy=layrub_hybrid optimizer=sgd",
    "predict model=gpt2 device=a100_40gb batch_size=4 precision=bf16 optimizer=adamw kernels=inductor",
    "predict model=gpt2 device=rtx3060 batch_size=10 precision=amp_bf16 optimizer=adamw "
    "allocator=expandable_segments:True",
    "predict model=resnet50 device=t4 batch_size=16 accumulate=4 optimizer=adamw",
    "predict model=llama_1b device=h100 batch_size=2 serving=decode precision=bf16",
    "predict model=llama_1b device=h100 batch_size=2 serving=prefill precision=fp16",
    "predict model=llama_7b cluster=dgx_h100 nodes=2 parallel={fsdp:16} batch_size=1 precision=bf16 optimizer=adamw",
    "predict model=llama_1b cluster=dgx_a100_80gb parallel={pp:2,fsdp:4} accumulate=4 batch_size=1 precision=bf16",
    "predict model=llama_1b cluster=dgx_a100_80gb parallel={fsdp:4,tp:2} batch_size=1 precision=bf16 optimizer=sgd",
    "predict model=gpt2 cluster=rtx4090x8 parallel={dp:8} partition_optimizer=true batch_size=2 optimizer=adam",
    "predict model=alexnet device=k40m batch_size=256 optimizer=sgd breakdown=true",
    "predict model=resnet18 device=rtx3060 batch_size=0",
    "predict model=resnet18 device=nothing",
    "predict model=resnet18",
    "predict model=resnet18 device=t4 strategy=modnn budget=1GB host_memory=8GB batch_size=64",
    "run model=resnet50 strategy=layrub_hybrid backend=simulated device=k40m batch_size=64",
    "run model=alexnet strategy=vdnn_all backend=simulated device=titan_x_maxwell framework=torch7 batch_size=128",
    "run model=googlenet strategy=modnn backend=simulated device=k40_modnn framework=modnn batch_size=64 budget=1GB",
    "run model=vgg16 strategy=superneurons backend=simulated device=k40m framework=caffe batch_size=32",
    "run model=lstm_rnn strategy=eager backend=simulated device=k40m batch_size=16",
    "run model=mobilenet_v2 strategy=nothing backend=simulated device=k40m",
    "run model=resnet50 strategy=modnn backend=simulated cluster=modnn_k40x4 device=k40_modnn batch_size=64",
    "run model=resnet18 strategy=joint backend=simulated device=t4 batch_size=64 budget=400MB optimizer=adamw "
    "precision=fp16",
)


def questions() -> Iterator[Question]:
    """Yield every question, each once."""
    draw = Random(SEED)
    seen: set[str] = set()
    for kind, count in COUNTS.items():
        left = count
        while left:
            question = _drawn(kind, draw)
            if question.name not in seen:
                seen.add(question.name)
                left -= 1
                yield question
    for words in COMMANDS:
        yield Question("membench", "", {"words": words.split()})


def _drawn(kind: str, draw: Random) -> Question:
    network = draw.choice(list(NETWORKS) if kind not in ("cluster",) else ["decoder", "recomputed"])
    budget = draw.choice((None, None, *BUDGETS[network]))
    options: dict[str, Any] = {"precision": draw.choice(PRECISIONS), "optimizer": draw.choice(OPTIMIZERS)}
    if kind == "advise":
        options["device"] = draw.choice(DEVICES)
        options |= {"budget": budget, "methods": draw.sample(STRATEGIES[1:], 3), "processes": 1}
        return Question("advise", network, _given(options))
    if kind == "cluster":
        options |= {"cluster": draw.choice(CLUSTERS), "processes": 1, "batch_size": draw.choice((None, 4)),
                    "checkpointing": ["none"], "parallel": draw.choice(PARALLEL[:3])}  # fmt: skip
        return Question("advise", network, _given(options))
    options["strategy"] = draw.choice(STRATEGIES)
    options["budget"] = budget
    options["channels_last"] = draw.choice((False, False, True))
    if kind == "compile":
        options |= {"backend": "simulated", "device": draw.choice(DEVICES),
                    "micro_batch": draw.choice((None, None, 2, "fitted", "fastest")),
                    "machine": draw.choice((None, "desktop")), "kernels": draw.choice((None, None, "inductor")),
                    "host_memory": draw.choice((None, None, "2 MB"))}  # fmt: skip
        return Question("compile", network, _given(options))
    options |= {"kernels": draw.choice((None, None, "inductor")),
                "allocator": draw.choice((None, None, "expandable_segments:True", "max_split_size_mb:64")),
                "machine": draw.choice((None, "desktop")), "accumulate": draw.choice((1, 1, 1, 4))}  # fmt: skip
    if kind == "predict":
        options["device"] = draw.choice(DEVICES)
        return Question("predict", network, _given(options))
    options |= {"cluster": draw.choice(CLUSTERS), "parallel": draw.choice(PARALLEL),
                "reshard_after_forward": draw.choice((None, True, False)),
                "strategy": draw.choice(("pytorch", "pytorch", options["strategy"])), "budget": None,
                "partition_optimizer": draw.choice((False, False, True))}  # fmt: skip
    if "pp" in options["parallel"]:
        options |= {"pipeline": draw.choice((None, "GPipe", "Interleaved1F1B")), "accumulate": draw.choice((2, 4))}
    return Question("predict", draw.choice(("decoder", "decoder", network)), _given(options))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value not in (None, False)}


# ---- file -------------------------------------------------------------------------------------------


def line(question: Question, answered: Any) -> str:
    """Return a question and its answer as a line of the file."""
    return json.dumps(
        {"call": question.call, "network": question.network, "options": question.options, "answer": answered}
    )


def committed() -> dict[str, tuple[Question, Any]]:
    """Return the questions of the file and their answers, by the questions' names."""
    found = {}
    for text in ANSWERS.read_text().splitlines():
        read = json.loads(text)
        question = Question(read["call"], read["network"], read["options"])
        found[question.name] = question, read["answer"]
    return found


def main() -> None:
    with ANSWERS.open("w") as file:
        for number, question in enumerate(questions()):
            print(number, question.name, flush=True)
            print(line(question, answer(question)), file=file)


if __name__ == "__main__":
    main()
