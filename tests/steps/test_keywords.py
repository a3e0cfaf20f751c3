"""Wrong kinds of arguments, for every argument of every entry: each is one sentence that names it."""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from torch import nn

import membench
from membench.advice.advise import AdviseKeywords, AnswerKeywords
from membench.advice.cluster.advise import ClusterKeywords
from membench.core.errors import MembenchError
from membench.steps.keywords import CompileKeywords, PredictKeywords

NET = nn.Linear(4, 3)
BATCH = ((torch.ones(5, 4),), (torch.zeros(5, dtype=torch.long),))
STEP = {"module": NET, "loss": nn.CrossEntropyLoss(), "batch": BATCH}
DGX = {**STEP, "cluster": "dgx_h100", "parallel": {"dp": 8}}
WRONG = [object(), nn.Linear, torch.ones(2), b"x", 2.5, -1, float("nan"), lambda: None, "ünï"]
"""Of all of these, none is allowed for any argument."""
ENTRIES: list[tuple[Callable[..., Any], Iterable[str], dict[str, Any], tuple[str, ...]]] = [
    (membench.compile, get_type_hints(CompileKeywords), STEP, ()),
    (membench.compile, get_type_hints(CompileKeywords), {**STEP, "backend": "simulated", "device": "t4"}, ("disk",)),
    (membench.predict, get_type_hints(PredictKeywords), {**STEP, "device": "t4"}, ()),
    (membench.predict, get_type_hints(PredictKeywords), DGX, ()),
    (membench.wrap, inspect.signature(membench.wrap).parameters, {"module": NET}, ("example",)),
    # the rest is of how the answer is made
    (membench.advise, get_type_hints(AdviseKeywords), {**STEP, "device": "t4"}, tuple(AnswerKeywords.__annotations__)),
    (membench.advise, get_type_hints(ClusterKeywords), {**STEP, "cluster": "dgx_h100"}, ("progress", "processes")),
]


def cases() -> Iterator[Any]:
    for number, (entry, keywords, given, left_out) in enumerate(ENTRIES):
        for name in dict.fromkeys([*given, *keywords]):
            if name not in left_out:
                yield pytest.param(entry, given, name, id=f"{entry.__name__}{number}-{name}")


@pytest.mark.parametrize(("entry", "given", "name"), [*cases()])
def test_a_wrong_kind_of_any_argument_is_one_sentence(
    entry: Callable[..., Any], given: dict[str, Any], name: str
) -> None:
    with_disk = {"host_memory": "1 GB"} if name == "disk" else {}
    for wrong in WRONG:
        with pytest.raises(MembenchError) as caught:
            entry(**{**given, **with_disk, name: wrong})
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("name", ["accumulate", "nodes", "stages"])
@pytest.mark.parametrize("wrong", [0, 10**30, True, "2", []])
def test_a_count_that_is_none_is_refused(name: str, wrong: object) -> None:
    with pytest.raises(MembenchError, match=f"^{name} is a positive whole number, not "):
        membench.predict(**{**DGX, name: wrong})


@pytest.mark.parametrize("wrong", [3, None, "net", nn.Linear, [], {}])
def test_a_number_or_a_class_in_place_of_a_module_is_refused(wrong: object) -> None:
    for entry, given in (
        (membench.compile, STEP),
        (membench.predict, {**STEP, "device": "t4"}),
        (membench.advise, {**STEP, "device": "t4"}),
        (membench.wrap, {}),
    ):
        with pytest.raises(
            MembenchError, match="the module is a torch.nn.Module, and an instance rather than its class"
        ):
            entry(**{**given, "module": wrong})  # type: ignore[operator]


def test_a_disk_whose_folder_does_not_exist_is_refused_where_it_would_not_be_used(tmp_path: Path) -> None:
    options: dict[str, Any] = {**STEP, "strategy": "eager", "optimizer": "adam", "host_memory": "10 MB"}
    with pytest.raises(MembenchError, match="disk is an existing folder, not '/nowhere'; make it, or name another"):
        membench.compile(**options, disk="/nowhere")
    membench.compile(**options, disk=tmp_path)


def test_an_option_of_one_device_is_refused_for_a_cluster_in_a_sentence() -> None:
    with pytest.raises(MembenchError, match="^largest, methods: not an option of advise on several GPUs; leave it out"):
        membench.advise(**STEP, cluster="dgx_h100", methods=["eager"], largest="none")


@pytest.mark.parametrize("entry", [membench.compile, membench.predict, membench.advise])
def test_an_unknown_keyword_is_refused_with_the_nearest(entry: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'precison'; did you mean 'precision'"):
        entry(**STEP, precison="bf16")


@pytest.mark.parametrize("entry", [membench.compile, membench.predict, membench.advise])
def test_help_describes_each_option_once(entry: Callable[..., Any]) -> None:
    declared = {membench.compile: CompileKeywords, membench.predict: PredictKeywords, membench.advise: AdviseKeywords}
    _, _, options = (entry.__doc__ or "").partition("\nOptions:\n")
    described = re.findall(r"^    (\w[\w, ]*): ", options, re.MULTILINE)
    assert sorted(name for names in described for name in names.split(", ")) == sorted(get_type_hints(declared[entry]))
