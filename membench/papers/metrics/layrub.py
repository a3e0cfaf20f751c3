"""Layrub's own numbers of a run: depth, and time by Caffe's iterations and by epochs."""

from collections.abc import Mapping
from typing import Any

from membench.core.record import Outcome, Record
from membench.papers.experiment import Paper, PaperCell, framework_of


def trained_layers(paper: Paper, cell: PaperCell, record: Record) -> float | None:
    """Return the number of layers of a network that ran, 0 if it ran out of memory."""
    if record.outcome is Outcome.OUT_OF_MEMORY:
        return 0
    return paper.models[cell.model]["layers"] if record.outcome is Outcome.OK else None


def iteration_time_s(paper: Paper, cell: PaperCell, record: Record) -> float | None:
    """Return the time of one iteration as the framework counts it; its last step exchanges gradients."""
    if record.outcome is not Outcome.OK:
        return None
    steps = steps_per_iteration(paper.models[cell.model], paper.systems[cell.system])
    step_time_s = record.metrics["step_time_s"]
    local_step_time_s = record.metrics.get("local_step_time_s", step_time_s)  # without an exchange
    return (steps - 1) * local_step_time_s + step_time_s


def epoch_time_s(paper: Paper, cell: PaperCell, record: Record) -> float | None:
    """Return the time of as many iterations as there are batches in the training set (`Paper.training_images`)."""
    iteration_s = iteration_time_s(paper, cell, record)
    if iteration_s is None:
        return None
    images = paper.training_images[paper.models[cell.model]["dataset"]]
    return iteration_s * images / record.configuration["batch_size"]


def steps_per_iteration(model: Mapping[str, Any], system: Mapping[str, Any]) -> int:
    """Return the forward and backward passes that a system's framework calls one iteration, Caffe's ``iter_size``.

    In an entry of `Paper.models`, ``steps_per_iteration`` names the frameworks in which it is not one.
    """
    return int(model.get("steps_per_iteration", {}).get(framework_of(model, system), 1))
