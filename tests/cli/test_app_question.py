"""What is asked in a browser is what the commands are asked, and is answered by them."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from membench.advice.device.advice import Advice, AdvisedPlan
from membench.cli import advise, predict
from membench.cli.app_question import NONE, Question, advised, predicted
from membench.core.errors import MembenchError

STEP = Question("lenet", "k40m", 1, 32, NONE, "sgd", checkpointing=False)


def _with_model(model: str) -> Question:
    return Question(model, "k40m", 1, 2, NONE, NONE, checkpointing=False)


def test_the_words_are_those_of_the_command_that_is_shown() -> None:
    question = Question("gpt2", "dgx_h100", 2, 8, "bf16", "adamw", checkpointing=True, more="parallel='{fsdp: 16}'")
    words = question.words()
    assert words == [
        "model=gpt2", "cluster=dgx_h100", "nodes=2", "batch_size=8", "precision=bf16", "optimizer=adamw",
        "model.checkpointing=true", "parallel={fsdp: 16}",
    ]  # fmt: skip
    assert shlex.split(question.command()) == ["membench", "advise", *words]
    assert STEP.command() == "membench predict model=lenet device=k40m batch_size=32 optimizer=sgd"
    assert STEP.command("joint").endswith("methods=joint")


def test_a_path_is_a_function_and_a_name_is_a_file() -> None:
    assert _with_model("my_nets.reader").words()[0] == "model._target_=my_nets.reader"
    assert _with_model("timm/resnet50.a1_in1k").words()[0] == "model=timm/resnet50.a1_in1k"


def test_a_prediction_is_that_of_the_command() -> None:
    searched = replace(STEP, more="methods=pytorch,memonger budget=1GB")
    assert searched.words_of_step() == STEP.words()
    assert searched.command("joint").endswith("optimizer=sgd budget=1GB methods=joint")
    assert predicted(STEP).elements == predict.answer(predict.parse(STEP.words())).elements


def test_a_configuration_of_transformers_is_a_network_with_its_sizes(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 500, "activation_function": "gelu_new"}
    path.write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "pad": None, **sizes}))
    question = _with_model(str(path))
    assert question.words()[:3] == ["model=hf/gpt2", "model.module.n_layer=2", "model.module.n_embd=64"]
    small = predicted(question).prediction
    path.write_text(json.dumps({"model_type": "gpt2", **sizes, "n_layer": 4}))
    assert predicted(question).prediction.allocated_bytes > small.allocated_bytes


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "cannot be read"),
        ("{}", "no model_type"),
        ('{"model_type": "llava", "text_config": {"hidden_size": 8}}', "text_config cannot be given"),
    ],
)
def test_another_file_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(MembenchError, match=problem):
        _with_model(str(path)).words()


@pytest.mark.slow
def test_plans_come_one_by_one_and_are_those_of_the_advice() -> None:
    begun: list[Advice] = []
    plans: list[AdvisedPlan] = []
    question = Question("lenet", "k40m", 1, 32, NONE, "sgd", checkpointing=False, more="methods=pytorch,memonger,eager")
    found = advised(question, begun.append, plans.append)
    assert isinstance(found, Advice)
    assert [each.plain for each in begun] == [found.plain]
    assert {plan.name for plan in plans} == {plan.name for plan in found.plans} == {"pytorch", "memonger", "eager"}
    assert isinstance(advise.parse(question.words()), advise.Options)
