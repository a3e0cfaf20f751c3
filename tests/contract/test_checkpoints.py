"""Steps with regions of `torch.utils.checkpoint`, as the program runs them and planned without regions."""

from functools import cache

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import membench
from membench.capture.capture import capture
from membench.conformance.results import Reference, reference_of
from membench.conformance.steps import check_exact
from membench.core.graph.task_graph import Phase
from membench.core.step.workload import Workload
from membench.planning.checking.validate import validate
from membench.steps.plan import plan
from tests.helpers.networks.checkpointed import CHECKPOINTED, TOKENS, Block, Region, workload_of
from tests.helpers.networks.contract import COST, as_run
from tests.helpers.steps.checks import check_results_and_peak, step_of
from tests.helpers.steps.variants import VARIANTS

pytestmark = [
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad"),  # of torch, for regions that are nested
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning"),  # of transformers
]
OF_EVERY_STRATEGY = ("batch norm, reentrant", "nested, not reentrant", "other random numbers, not reentrant")


@cache
def case_of(name: str) -> Reference:
    return as_run(workload_of(name))


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_as_the_program_runs_it_results_and_the_allocators_peak_are_exact(name: str) -> None:
    case = case_of(name)
    schedule = plan(case.captured.graph, VARIANTS["pytorch"], COST, None)
    assert schedule.peak_bytes - schedule.graph.external_bytes == case.peak_bytes
    check_results_and_peak(case, schedule)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKPOINTED)
def test_joint_plans_the_step_without_the_regions_to_the_programs_bits(name: str) -> None:
    case = case_of(name)
    schedule = plan(case.captured.graph, VARIANTS["joint"], COST, None)
    validate(schedule)
    check_results_and_peak(case, schedule)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", OF_EVERY_STRATEGY)
def test_every_strategy_is_exact(name: str, variant: str) -> None:
    case = case_of(name)
    with step_of(case, plan(case.captured.graph, VARIANTS[variant], COST, None), chaos=None) as step:
        check_exact(case, step)


def repeated(name: str) -> int:
    """Return how many tasks the step without regions still runs again."""
    return sum(task.is_recomputed for task in case_of(name).captured.graph.tasks)


@pytest.mark.parametrize("name", ["dropout, reentrant", "selective by list", *TOKENS])
def test_nothing_is_run_again_without_the_regions(name: str) -> None:
    assert not repeated(name)


def test_statistics_are_updated_again_as_the_program_does() -> None:
    case = case_of("batch norm, not reentrant")
    again = [task for task in case.captured.graph.tasks if task.is_recomputed]
    operators = {task.call.operator for task in again if task.call}
    assert operators == {"aten.native_batch_norm.default", "aten.add_.Tensor"}
    assert len(again) == 4
    plain = case.captured.graph.plain
    assert plain is not None
    assert sum(task.is_recomputed for task in plain.tasks) > len(again)


def test_without_the_regions_the_step_is_that_of_the_module_without_them() -> None:
    torch.manual_seed(0)
    blocks = [Block(), Block(in_place=True)]
    batch = torch.randn(4, 16), torch.randint(16, (4,))
    plain = Workload("plain", nn.Sequential(*blocks), nn.functional.cross_entropy, batch[:1], batch[1:])
    regions = nn.Sequential(*(Region(each, use_reentrant=False) for each in blocks))
    dissolved = Workload("regions", regions, nn.functional.cross_entropy, batch[:1], batch[1:])
    graphs = capture(plain).graph, capture(dissolved).graph
    operators = [[task.call.operator for task in graph.tasks if task.call] for graph in graphs]
    assert operators[0] == operators[1]
    assert graphs[0].lower_bound_bytes == graphs[1].lower_bound_bytes
    layers = [[task.layer for task in graph.tasks if task.phase is Phase.BACKWARD] for graph in graphs]
    assert layers[0] == layers[1]


def test_a_prediction_has_the_second_run_in_its_time_and_not_in_its_memory() -> None:
    with torch.device("meta"):
        blocks = [Block(), Block(), Block()]
        batch = torch.randn(256, 16), torch.randint(16, (256,))
    found = {
        kind: membench.predict(module, nn.functional.cross_entropy, batch, device="t4", precision=precision)
        for precision in ("fp32", "amp_fp16")
        for kind, module in (
            (("plain", precision), nn.Sequential(*blocks)),
            (("not reentrant", precision), nn.Sequential(*(Region(b, use_reentrant=False) for b in blocks))),
            (("reentrant", precision), nn.Sequential(blocks[0], *(Region(b, use_reentrant=True) for b in blocks[1:]))),
        )
    }  # fmt: skip
    for precision in ("fp32", "amp_fp16"):
        plain = found["plain", precision]
        for kind in ("not reentrant", "reentrant"):
            assert found[kind, precision].step_time_s > plain.step_time_s
            assert found[kind, precision].allocated_bytes < plain.allocated_bytes


@pytest.mark.parametrize("strategy", ["pytorch", "joint"])
def test_a_wrapped_module_with_regions_has_the_programs_bits(strategy: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 16), Region(Block(batch_norm=True), use_reentrant=False), Block())
    inputs = torch.randn(4, 16)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    results = []
    for called in (module, membench.wrap(module, strategy=strategy)):
        module.load_state_dict(before)
        module.zero_grad()
        torch.manual_seed(1)
        called(inputs).square().mean().backward()
        results.append([*(w.grad for w in module.parameters()), *(b.clone() for b in module.buffers()), torch.rand(1)])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_a_loss_may_run_in_regions() -> None:
    def chunked(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        pairs = zip(outputs.chunk(2), targets.chunk(2), strict=True)
        of_chunk = nn.functional.cross_entropy
        return sum(checkpoint(of_chunk, *pair, use_reentrant=False) for pair in pairs) / 2  # type: ignore[return-value]

    torch.manual_seed(0)
    work = Workload("chunked", nn.Linear(8, 5), chunked, (torch.randn(6, 8),), (torch.randint(5, (6,)),))
    case = reference_of(work)
    for name in ("pytorch", "joint"):
        check_results_and_peak(case, plan(case.captured.graph, VARIANTS[name], COST, None))
