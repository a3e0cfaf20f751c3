import sys
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from benchmarks.compare import networks, planned, run
from benchmarks.compare.copies import Copies, CopiesBetweenDevices, CopyMeter, HostMemory
from benchmarks.compare.judged import duels, frontier, not_dominated, step_time_s
from benchmarks.compare.measured import InitialState, all_numbers, memory, times_in_turns_s
from benchmarks.compare.networks import NETWORKS, Network
from benchmarks.compare.page import page
from benchmarks.compare.peers import TRAINING_PEERS
from benchmarks.compare.row import EAGER, LEFT_OUT, MEMBENCH, NOT_RUN, OK, PEER, PYTORCH, TRAINING, Row
from benchmarks.compare.run import budgets, peer_alone
from benchmarks.compare.step import Step, plain_step
from membench.core.errors import UnsupportedStrategy
from membench.core.step.kernels import Kernels
from membench.core.step.workload import Workload
from membench.execution.measurement import cpu_peak_bytes
from membench.strategies.base import find_strategy
from tests.helpers.kernels.compiled_functions import without_compiler

CPU = torch.device("cpu")


class Chain(nn.Module):
    def __init__(self, dropout: float, width: int = 32, depth: int = 6) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(inplace=True), nn.Dropout(dropout))
            for _ in range(depth)
        )

    def forward(self, maps: Tensor) -> Tensor:
        maps = self.first(maps)
        for block in self.blocks:
            maps = block(maps)
        return maps


def chain(dropout: float = 0.5) -> Workload:
    torch.manual_seed(0)
    return Workload("chain", Chain(dropout), nn.CrossEntropyLoss(), (torch.randn(64, 32),), (torch.arange(64) % 32,))


def blocks(module: nn.Module) -> list[nn.Module]:
    return list(module.get_submodule("blocks").children())


def numbers(name: str, workload: Workload) -> dict[str, Any]:
    eager = plain_step(workload)
    initial = InitialState(workload.module)
    expected = initial.results(eager)
    return all_numbers(TRAINING_PEERS[name].step(workload, blocks), initial, expected, CPU)


@pytest.mark.parametrize("name", ["checkpoint", "selective checkpoint", "save_on_cpu"])
def test_a_peer_on_the_cpu_computes_eagers_gradients_in_less_memory(name: str) -> None:
    workload = chain()
    found = numbers(name, workload)
    assert found["is_exact"] and found["error"] == 0 and found["missing"] == 0 and found["held_bytes"] == 0
    assert found["peak_bytes"] < memory(plain_step(workload), CPU)["peak_bytes"]


@pytest.mark.slow
@pytest.mark.skipif(which("c++") is None, reason="needs a C++ compiler")
def test_each_budget_of_torch_compile_is_compiled_in_the_same_process() -> None:
    workload, graphs = chain(dropout=0.0), counters["stats"]["unique_graphs"]
    for number, name in enumerate(("compile", "compile, activation_memory_budget=0"), start=1):
        TRAINING_PEERS[name].step(workload, blocks).run()
        assert counters["stats"]["unique_graphs"] == graphs + number


def test_wrong_gradients_with_dropout_are_seen() -> None:
    found = numbers("checkpoint, preserve_rng_state=False", chain())
    assert not found["is_exact"] and found["error"] > 0.01
    assert numbers("checkpoint, preserve_rng_state=False", chain(dropout=0.0))["is_exact"]


def test_rounding_is_what_the_last_bit_of_each_weight_changes() -> None:
    workload = chain()
    eager, initial = plain_step(workload), InitialState(workload.module)
    expected, weights = (initial.results(eager), [each.detach().clone() for each in workload.module.parameters()])
    assert 1e-8 < initial.rounding(eager, expected) < 1e-4
    assert all(map(torch.equal, weights, workload.module.parameters()))


def test_a_peer_with_other_kernels_may_differ_by_rounding_and_a_strategy_may_not() -> None:
    assert row(PEER, "compile", 1, 1.0, error=0.02, rounding=0.005).has_eagers_results
    assert not row(PEER, "compile", 1, 1.0, error=0.06, rounding=0.005).has_eagers_results
    assert row(PEER, "compile", 1, 1.0, error=5e-5, rounding=1e-7).has_eagers_results
    assert not row(MEMBENCH, "epmc", 1, 1.0, error=0.02, rounding=0.005).has_eagers_results


def test_statistics_that_are_updated_twice_are_seen() -> None:
    twice, once = numbers("checkpoint", chain()), numbers("save_on_cpu", chain())
    assert (twice["statistics_updates"], twice["has_exact_buffers"]) == (2, False)
    assert (once["statistics_updates"], once["has_exact_buffers"]) == (1, True)


def test_copies_of_weights_and_of_the_same_map_are_counted() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(32, 16, bias=False) for _ in range(2))

        def forward(self, maps: Tensor) -> Tensor:
            maps = maps.exp()
            return self.layers[0](maps) + self.layers[1](maps)

    images = torch.randn(64, 32, requires_grad=True)
    workload = Workload("twice", Twice(), nn.CrossEntropyLoss(), (images,), (torch.arange(64) % 16,))
    step = TRAINING_PEERS["save_on_cpu"].step(workload, blocks)
    copies = step.count()
    scores_bytes = 64 * 16 * 4
    # exp and two products save one map, the logarithm of softmax and the loss another
    assert copies.repeated_bytes == 2 * images.nbytes + scores_bytes
    assert copies.weight_bytes == 2 * 16 * 32 * 4
    assert copies.to_host_bytes == copies.to_device_bytes > 3 * images.nbytes
    assert step.count() == copies


def test_host_memory_is_apart_from_the_devices() -> None:
    maps, mode = torch.randn(16, 8, 4, 4).to(memory_format=torch.channels_last), HostMemory(CopyMeter(()))
    kept: list[Tensor] = []

    def leave() -> None:
        with mode:
            kept.append(maps.cpu())

    assert cpu_peak_bytes(leave) < maps.nbytes / 2
    with mode:
        back = kept[0].to(CPU)
    assert torch.equal(back, maps) and back.stride() == maps.stride()
    assert len({each.data_ptr() for each in (maps, kept[0], back)}) == 3


def test_copies_between_devices_are_counted() -> None:
    meter = CopyMeter(())
    with CopiesBetweenDevices(meter):
        torch.zeros(8).to("meta")
        torch.zeros(4).clone()
    assert (meter.copies.to_device_bytes, meter.copies.to_host_bytes) == (32, 0)


@pytest.mark.parametrize("name", ["torchtune OffloadActivations", "TRL OffloadActivations"])
def test_a_peer_that_needs_cuda_states_so(name: str) -> None:
    with pytest.raises(UnsupportedStrategy, match="CUDA"):
        TRAINING_PEERS[name].step(chain(), blocks)


def test_a_peer_that_is_not_installed_states_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(UnsupportedStrategy, match="pip install"):
        TRAINING_PEERS["DeepSpeed checkpointing"].step(chain(), blocks)


def test_memory_that_a_step_leaves_is_seen() -> None:
    kept: list[Tensor] = []
    step = plain_step(chain())
    leaking = replace(step, run=lambda: kept.append(torch.zeros(1000)))
    assert memory(leaking, CPU)["held_bytes"] == 4000


@pytest.mark.slow
def test_weights_that_a_strategy_keeps_on_the_host_are_not_in_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    wide = nn.Sequential(*(nn.Linear(200, 200) for _ in range(6)))
    workload = Workload("wide", wide, nn.CrossEntropyLoss(), (torch.randn(4, 200),), (torch.arange(4),))
    monkeypatch.setattr(planned, "strategies", lambda mode: {"joint": find_strategy("joint")})
    found = list(planned.planned_steps("wide", workload, CPU, [1_000_000], Kernels.EAGER, ["joint"]))
    assert len(found) == 2
    for each in found[1:]:
        assert each.step is not None and each.row.budget_bytes is not None
        assert each.step.backends[0].has_host_resident_blocks
        each.step.run()
        assert memory(each.step, CPU)["peak_bytes"] <= each.row.budget_bytes
        each.step.close()


def test_every_network_has_blocks_that_hold_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "DEVICE", "meta")
    for network in NETWORKS.values():
        found = network.blocks(network.training().module)
        assert len(found) >= 5, network.model
        assert all(next(block.parameters(), None) is not None for block in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_no_layer_has_weights_of_zeros_which_would_stop_every_gradient(name: str) -> None:
    weights = dict(NETWORKS[name].training().module.named_parameters())
    assert [each for each in weights if each.endswith("weight") and not weights[each].any()] == []


@pytest.fixture
def lenet(monkeypatch: pytest.MonkeyPatch) -> str:
    def convolutions(module: nn.Module) -> list[nn.Module]:
        return [each for each in module.modules() if isinstance(each, nn.Conv2d)]

    monkeypatch.setitem(NETWORKS, "lenet", Network("lenet", 8, convolutions))
    monkeypatch.setattr(run, "TURNS_S", 0.0)
    monkeypatch.setattr(run, "AT_ONCE", 2)
    few = {name: find_strategy(name) for name in ("eager", "pytorch", "layrub_hybrid", "rotor")}
    monkeypatch.setattr(planned, "strategies", lambda mode: few)
    return "lenet"


def test_a_network_has_a_row_for_every_method_and_both_kinds_of_kernels(lenet: str, tmp_path: Path) -> None:
    names = ("checkpoint", "save_on_cpu", "TRL OffloadActivations")
    alone = [peer_alone(lenet, TRAINING, name, "cpu") for name in names]
    assert [row.outcome for row in alone] == [OK, OK, NOT_RUN]
    strategies = ["eager", "pytorch", "layrub_hybrid"]
    with without_compiler(tmp_path):
        rows = run.all_together(lenet, TRAINING, alone, strategies, "cpu")
    compiled = {"eager, inductor", "layrub_hybrid, inductor"}
    assert {row.name for row in rows} >= {*names, EAGER, "eager", "layrub_hybrid", *compiled}
    assert "rotor" not in {row.method for row in rows}
    for row in rows:
        assert (row.outcome == NOT_RUN and row.reason) or row.first_time_over_eager or row.tool != MEMBENCH
        assert row.tool == MEMBENCH or row.outcome == NOT_RUN or row.time_over_eager
        assert row.tool == PEER or row.outcome == NOT_RUN or row.error is not None
        if row.outcome == OK and row.budget_bytes is not None:
            assert row.peak_bytes is not None and row.peak_bytes <= row.budget_bytes
    assert not run.is_due(rows, lenet, TRAINING, names)
    left_out = [replace(row, reason=LEFT_OUT) if row.method == names[2] else row for row in rows]
    assert run.is_due(left_out, lenet, TRAINING, names) and not run.is_due(left_out, lenet, TRAINING, names[:2])
    assert run.is_due([row for row in rows if row.method != names[0]], lenet, TRAINING, names)
    untimed = [replace(row, step_time_s=None) if row.method == names[0] else row for row in rows]
    assert run.is_due(untimed, lenet, TRAINING, names)
    text = page(rows, [])
    assert "not run: it copies on CUDA streams" in text and "| membench " in text and ", inductor |" in text
    older = [replace(row, network="resnet50") for row in rows if row.kernels == Kernels.EAGER]
    sentence = "No strategy has run on compiled kernels on resnet50: these rows are older."
    assert sentence in page([*rows, *older], []) and sentence not in text


def row(tool: str, method: str, peak_bytes: int, time_s: float, **fields: Any) -> Row:
    return Row(
        "resnet50", TRAINING, tool, method, OK, peak_bytes=peak_bytes, step_time_s=time_s, eager_time_s=1.0, rounds=3,
        **{"error": 0.0, "missing": 0, "first_time_over_eager": time_s, **fields},
    )  # fmt: skip


ROWS = [
    row(PYTORCH, EAGER, 100, 1.0),
    row(PEER, "checkpoint", 60, 1.4, statistics_updates=2),
    row(PEER, "save_on_cpu", 20, 3.0),
    row(MEMBENCH, "eager", 100, 1.0),
    row(MEMBENCH, "joint", 61, 1.1),
    row(MEMBENCH, "rotor", 60, 1.2),
    row(MEMBENCH, "memonger", 60, 1.3),
    row(MEMBENCH, "epmc", 50, 0.5, error=0.1),
]


def test_the_rival_of_a_peer_holds_no_more_and_computes_the_same() -> None:
    checkpoint, save_on_cpu = duels(ROWS)
    assert checkpoint.best is not None and checkpoint.best.method == "rotor" and checkpoint.is_won
    assert checkpoint.ratio == pytest.approx(1.4 / 1.2)
    assert save_on_cpu.best is None and not save_on_cpu.is_won


def test_the_rival_is_chosen_by_another_time_than_it_is_judged_by() -> None:
    lucky = row(MEMBENCH, "lucky", 60, 1.35, first_time_over_eager=1.1)
    [checkpoint] = duels([*ROWS[:2], *ROWS[3:], lucky])
    assert checkpoint.best == lucky and checkpoint.ratio == pytest.approx(1.4 / 1.35)


def test_rows_that_another_one_beats_are_dominated() -> None:
    assert [each.method for each in not_dominated(ROWS[3:], step_time_s)] == ["eager", "joint", "rotor"]


def test_rows_that_another_one_hardly_beats_are_not_dominated_with_a_margin() -> None:
    rows = [row(MEMBENCH, "joint", 60, 1.0), row(MEMBENCH, "dtr", 61, 1.02), row(MEMBENCH, "rotor", 61, 1.04)]
    assert [each.method for each in not_dominated(rows, step_time_s)] == ["joint"]
    assert [each.method for each in not_dominated(rows, step_time_s, 0.03)] == ["dtr", "joint"]


def test_strategies_that_others_dominate_in_the_first_rounds_are_closed_and_not_timed_again() -> None:
    module, closed = nn.Linear(2, 2), list[str]()

    def method(tool: str, name: str, peak_bytes: int, time_s: float) -> tuple[Row, Step]:
        step = Step(lambda: sum(range(int(time_s * 2e6))), module, Copies, 0, close=lambda: closed.append(name))
        return Row("resnet50", TRAINING, tool, name, OK, peak_bytes=peak_bytes, error=0.0, missing=0), step

    eager, peer = method(PYTORCH, EAGER, 100, 0.02), method(PEER, "checkpoint", 60, 0.04)
    strategies = [method(MEMBENCH, "joint", 60, 0.01), method(MEMBENCH, "rotor", 60, 0.1)]
    strategies += [method(MEMBENCH, "layrub_hybrid", 20, 0.05)]
    best, others = run.chosen(eager, strategies, CPU, rounds=3)
    assert [row.method for row, _ in best] == ["joint", "layrub_hybrid"] and closed == ["rotor"]
    [rotor] = others
    assert rotor.step_time_s is None and rotor.first_time_over_eager and rotor.first_time_over_eager > 2
    judged, *rest = run.timed_rows([eager, *best, peer], CPU)
    assert [row.method for row in rest] == ["joint", "layrub_hybrid", "checkpoint"]
    assert judged.time_over_eager == 1 and all(row.eager_time_s == judged.step_time_s for row in rest)


def test_each_round_has_an_order_of_its_own() -> None:
    module, order = nn.Linear(2, 2), list[str]()

    def named(name: str) -> Step:
        return Step(lambda: order.append(name), module, Copies, 0)

    times_s = times_in_turns_s([named(name) for name in "abcd"], CPU, 6)
    rounds = ["".join(order[at : at + 4]) for at in range(0, 24, 4)]
    assert all(sorted(each) == list("abcd") for each in rounds) and len(set(rounds)) > 3
    assert [len(each) for each in times_s] == [6] * 4


def test_the_page_states_who_is_faster_and_what_is_wrong() -> None:
    lines = page(ROWS, []).splitlines()
    assert any(line.startswith("| checkpoint | 1.17 rotor | 1 of 1 | 1.17 |") for line in lines)
    assert any(line.startswith("| save_on_cpu | no strategy holds as little | 0 of 1 |") for line in lines)
    assert any(line.startswith("| epmc | 1 |  | on 1, at most 0.1 |") for line in lines)
    assert any(line.startswith("| checkpoint | 1 |  |  | on 1, at most 2 |") for line in lines)


def test_the_page_names_once_what_was_left_out_everywhere() -> None:
    absent = [
        replace(each, method=name, outcome=NOT_RUN, reason=LEFT_OUT)
        for each, name in zip(ROWS[1:3], ("compile", "DeepSpeed checkpointing"), strict=True)
    ]
    elsewhere = [replace(absent[0], network="unet", outcome=OK, reason=""), replace(ROWS[0], network="unet")]
    text = page([*ROWS, *absent, *elsewhere], [])
    assert "| compile | not run: left out of this run |" in text
    assert [line for line in text.splitlines() if "DeepSpeed" in line] == [
        "Left out of these runs: DeepSpeed checkpointing."
    ]
    assert "## resnet50, training" in text and "## resnet50, inference" not in text
    assert "Not run: resnet50 (inference), vgg16 (training, inference)" in text


def test_a_peer_without_a_time_has_its_peak_and_the_reason() -> None:
    untimed = replace(ROWS[1], step_time_s=None, reason="another program was timed")
    text = page([ROWS[0], untimed, *ROWS[2:]], [])
    assert "| checkpoint | not run | 0 of 0 |" in text
    assert "| checkpoint | 0.0 | not run: another program was timed | 0.0 |" in text
    assert "checkpoint" not in {point.strategy for point in frontier([ROWS[0], untimed], "").points}


def test_the_picture_has_every_peer_and_what_is_not_dominated(tmp_path: Path) -> None:
    picture = frontier(ROWS, "resnet50")
    assert {point.strategy for point in picture.points} == {EAGER, "checkpoint", "save_on_cpu", picture.ours}
    ours = [point.step_time_s for point in picture.points if point.strategy == picture.ours]
    assert ours == [
        step_time_s(each) for each in not_dominated([each for each in ROWS if each.tool == MEMBENCH], step_time_s)
    ]


def test_budgets_are_the_peers_peaks_below_eagers() -> None:
    peers = [row(PEER, str(peak), peak, 1.0) for peak in (2000, 900, 500, 502, 100)]
    wrong = row(PEER, "wrong", 50, 1.0, missing=3)
    assert budgets(row(PYTORCH, EAGER, 1000, 1.0), [*peers, wrong]) == [900, 500, 100]


def test_the_picture_marks_a_peer_with_wrong_gradients() -> None:
    points = frontier([*ROWS, row(PEER, "DeepSpeed", 10, 0.5, missing=3)], "resnet50").points
    assert "DeepSpeed (wrong gradients)" in {point.strategy for point in points}
