"""Layrub's own numbers, and vDNN's largest batch: what a run that does not fit counts, and iterations of several steps."""

from dataclasses import replace

import pytest

from membench.core.record import Outcome
from membench.papers.metrics.layrub import epoch_time_s, iteration_time_s, trained_layers
from membench.papers.metrics.vdnn import trained_batch_size
from tests.helpers.papers import PAPER, cell, record


@pytest.mark.parametrize(
    ("outcome", "layers", "batch_size"),
    [(Outcome.OK, 5, 8), (Outcome.OUT_OF_MEMORY, 0, 0), (Outcome.FAILED, None, None)],
)
def test_depth_and_batch_count_what_trained(
    outcome: Outcome, layers: int | None, batch_size: int | None
) -> None:
    assert trained_layers(PAPER, cell(), record(outcome)) == layers
    assert trained_batch_size(PAPER, cell(), record(outcome)) == batch_size


@pytest.mark.parametrize(("framework", "iteration_s"), [("mxnet", 6.0), ("caffe", 3.0)])
def test_an_iteration_may_be_several_steps_of_a_framework(framework: str, iteration_s: float) -> None:
    models = {"small": {**PAPER.models["small"], "steps_per_iteration": {"mxnet": 2}}}
    paper = replace(PAPER, models=models, systems={"ours": {"framework": framework}})
    assert iteration_time_s(paper, cell(), record(step_time_s=3.0)) == iteration_s
    assert epoch_time_s(paper, cell(), record(step_time_s=3.0)) == 1000 / 8 * iteration_s


def test_only_the_last_step_of_an_iteration_exchanges_gradients() -> None:
    models = {"small": {**PAPER.models["small"], "steps_per_iteration": {"mxnet": 3}}}
    exchanged = record(step_time_s=3.0, local_step_time_s=2.0)
    assert iteration_time_s(replace(PAPER, models=models), cell(), exchanged) == 7


def test_a_run_that_does_not_fit_has_no_time() -> None:
    assert iteration_time_s(PAPER, cell(), record(Outcome.OUT_OF_MEMORY)) is None
    assert epoch_time_s(PAPER, cell(), record(Outcome.OUT_OF_MEMORY)) is None
