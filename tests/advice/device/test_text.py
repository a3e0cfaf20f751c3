"""An advice as text: those that need more memory in one line, and a sentence where no measurement is published."""

from dataclasses import replace

import pytest

from membench.advice.device.advice import Advice, AdvisedPlan, Lever, Refusal
from membench.advice.device.text import code, further_elements, values
from membench.core.document import as_text
from membench.core.errors import MembenchError
from membench.core.units import GIB
from membench.steps.predicted.intervals import StepKind
from membench.steps.predicted.prediction import Prediction

KIND = StepKind(trains=True, several=False, copies=False, measured=False)
PLAIN = Prediction("t4", 8, 20 * GIB, 21 * GIB, None, 0.5, False, 16 * GIB, {"activations": 20 * GIB}, KIND)
PLAN = AdvisedPlan(
    "joint",
    8,
    10 * GIB,
    11 * GIB,
    None,
    12 * GIB,
    0.4,
    3 * GIB,
    0.01,
    GIB,
    None,
    ((8, 1),),
    0.02,
    is_exact=True,
    is_idle=False,
)
ADVICE = Advice(
    model="net",
    precision="amp_fp16",
    optimizer=None,
    update_runs=True,
    channels_last=True,
    is_compiled=False,
    plain=PLAIN,
    budget_bytes=None,
    fits=False,
    activations_bytes={"one": 20 * GIB},
    largest_batch=5,
    plans=(replace(PLAN, name="modnn", micro_batches=((4, 2),), gap=None, is_exact=False), PLAN),
    refused={
        "eager": Refusal("too large", 20 * GIB, largest_batch=1024),
        "dtr": Refusal("too large", 17 * GIB),
        "gist": Refusal("no ReLU", None),
    },
)  # fmt: skip


COMPILED = Lever(("torch.compile",), ("kernels=inductor",), ("fused",), False, True, 9 * GIB, 0.3)


@pytest.mark.parametrize(
    ("allocator", "end"),
    [("", "; allocator=expandable_segments:True may waste less"), ("expandable_segments:True", "")],
)
def test_methods_whose_memory_is_in_pieces_are_told_apart(allocator: str, end: str) -> None:
    refused = {"eager": Refusal("", 20 * GIB), "dtr": Refusal("", 17 * GIB, is_fragmented=True)}
    text = str(replace(ADVICE, refused=refused, allocator=allocator)).splitlines()
    assert f"  room for what it holds, not for what the allocator reserves: dtr{end}" in text


def test_the_best_is_the_fastest_with_plain_pytorchs_results() -> None:
    text = str(ADVICE)
    assert "plain PyTorch  does not fit in 16.0 GB" in text
    assert "need more: dtr 17.0 GB, eager 20.0 GB (largest batch 1,024)" in text and "gist: no ReLU" in text
    assert "not for what the allocator reserves" not in text
    assert "2 x 4" in text and "2.0%" in text and "modnn *" in text
    assert "The fastest one that gives plain PyTorch's results, joint:" in text
    assert "90% of published steps of this kind (training on one GPU" in text
    assert "channels_last=True" in "\n".join(code(ADVICE, PLAN))
    assert "optimizer=optimizer" in code(replace(ADVICE, optimizer="adamw"), PLAN)[1]
    assert "host_memory=64" in code(replace(ADVICE, host_memory_bytes=64), PLAN)[1]
    assert all(line.startswith("#") for line in code(replace(ADVICE, update_runs=False), PLAN))


def test_an_order_that_intervals_leave_open_is_named() -> None:
    far = replace(PLAN, name="ratel", step_time_s=40.0)
    text = str(replace(ADVICE, plans=(*ADVICE.plans, far))).splitlines()
    assert "  90% intervals of neighbours' times overlap, so their order may be another: modnn to joint" in text
    assert not any("overlap" in line for line in str(replace(ADVICE, plans=(PLAN, far))).splitlines())


@pytest.mark.parametrize(
    ("levers", "first", "second"),
    [
        ((), "Fastest: plain PyTorch, 400 ms, 10.0 GB", "Nothing to change"),
        ((COMPILED,), "Fastest: torch.compile, 300 ms, 9.0 GB (kernels=inductor)", "Nothing else to change"),
        ((replace(COMPILED, step_time_s=0.5),), "Fastest: plain PyTorch, 400 ms, 10.0 GB", "Nothing to change"),
        ((replace(COMPILED, fits=False),), "Fastest: plain PyTorch, 400 ms, 10.0 GB", "Nothing to change"),
    ],
)
def test_what_fits_needs_no_change(levers: tuple[Lever, ...], first: str, second: str) -> None:
    plan = replace(PLAN, name="pytorch", is_idle=True)
    text = as_text(further_elements(replace(ADVICE, fits=True, plans=(plan,), refused={}, levers=levers))).splitlines()
    found = text.index(first)
    assert text[found + 1] == f"{second}: plain PyTorch fits, and methods that save memory seldom save time."
    assert not any("Methods that fit" in line or "import torch" in line for line in text)


def test_changes_of_results_are_not_the_fastest_way() -> None:
    rounded = replace(COMPILED, names=("weights in bf16",), options=("precision=bf16",))
    assert replace(ADVICE, levers=(rounded,)).fastest == PLAN


def test_methods_that_change_nothing_share_a_line() -> None:
    idle = [replace(PLAN, name=name, step_time_s=0.3, is_idle=True) for name in ("eager", "dtr", "rotor")]
    text = str(replace(ADVICE, plans=(*idle, PLAN))).splitlines()
    assert "  with nothing to offload, recompute or encode, the same: dtr, rotor" in text
    assert [line.split()[0] for line in text if "12.0 GB" not in line and " ms" in line][2:] == ["eager", "joint"]


def test_parts_of_one_size_are_counted_together() -> None:
    parts = replace(PLAN, micro_batches=((2, 3), (2, 1)), micro_batch=2)
    assert "4 x 2" in str(replace(ADVICE, plans=(parts,)))
    assert "micro_batch=2" in code(ADVICE, parts)[1]


def test_the_largest_batch_is_in_the_table_or_any() -> None:
    plans = (
        replace(PLAN, largest_batch=2048, larger_may_fit=True),
        replace(PLAN, name="memonger", largest_batch=2048),
        replace(PLAN, name="modnn", divides_batch=True),
    )
    joint, memonger, modnn = (
        line
        for line in str(replace(ADVICE, plans=plans)).splitlines()
        if line.startswith("  ") and "12.0" not in line and "400 ms" in line
    )
    assert joint.endswith("2,048 or more") and memonger.endswith(" 2,048") and modnn.endswith("any")


def test_where_nothing_fits_there_is_nothing_to_paste() -> None:
    nothing = replace(ADVICE, plans=())
    assert nothing.best is None
    assert "No method fits." in str(nothing).splitlines() and not any(
        "compile" in line for line in str(nothing).splitlines()
    )
    assert values(nothing)["code"] == []


def test_a_plan_by_itself_cannot_be_compiled() -> None:
    with pytest.raises(MembenchError, match="not made by membench.advise"):
        PLAN.compile("cpu")


def test_levers_have_their_numbers_their_options_and_what_they_change() -> None:
    fused = Lever(("fused update",), ("optimizer.fused=true",), ("no temporaries",), True, False, 18 * GIB, 0.3)
    least = Lever(("LoRA",), ("model.lora={r: 16}",), ("adapters",), False, False, 17 * GIB, None)
    both = Lever(("fused update", "LoRA"), ("one", "two"), ("no temporaries", "adapters"), False, True, GIB, 0.2)
    given = replace(
        ADVICE,
        levers=(both, fused, least),
        not_tried=("QLoRA: no",),
        sharded_bytes={2: GIB},
        refused={"eager": Refusal("", 20 * GIB, is_planned=False), "dtr": Refusal("late", None, is_planned=False)},
        plans=(replace(PLAN, moves_weights=True),),
    )  # fmt: skip
    text = str(given)
    assert "fused update + LoRA *" in text and "one two" in text
    rows = [line.split() for line in text.splitlines() if "GB" in line and ("fused" in line or "LoRA" in line)]
    assert [("yes" in row, "no" in row) for row in rows] == [(True, False), (False, True), (False, True)]
    assert "18.0 GB" in text and "at least 17.0 GB" in text and "no temporaries; adapters" not in text
    assert "  need at least 20.0 GB: eager" in text and "  late: dtr" in text
    assert "2: 1.0 GB" in text and "not tried: QLoRA: no" in text
    assert "without a change to the program: joint, with 1.0 GB in host memory" in text
    assert "What would" not in str(replace(given, fits=True))
    assert values(given)["levers"][2]["step_time_s"] is None
