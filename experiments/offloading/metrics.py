"""Numbers that authors of offloading state: operations per second, and the largest model."""

from dataclasses import replace

from membench.core import configuration
from membench.core.configuration import instantiate
from membench.core.record import Outcome, Record
from membench.lab.papers.reading.cells import compose_cells
from membench.lab.papers.reading.experiment import Paper, PaperCell
from membench.lab.validation.predicting import largest_parameters, predictor_of
from membench.sweep.cells.metrics import Metrics

DEPTHS = (16, 32)
"""Layers of the two networks whose memory is continued to deeper ones; of fewer, the embedding is too large a share."""


def operations_per_s(paper: Paper, cell: PaperCell, record: Record) -> float | None:
    """Return operations per second as SuperOffload's examples count them, with those of recomputation.

    ``estimate_transformer_tflops`` of training/DeepSpeed-SuperOffload/utils.py: of four passes, with checkpointing,
    each two for each weight and token, and four for each layer, width and pair of tokens.
    """
    model = record.configuration["model"]
    module = model["module"]
    if record.outcome is not Outcome.OK or "num_hidden_layers" not in module:
        return None
    tokens = model["sequence_length"]
    pairs = module["num_hidden_layers"] * module["hidden_size"] * tokens**2
    of_sample = 4 * (2 * paper.models[cell.model]["parameters"] * tokens + 4 * pairs)
    return of_sample * record.metrics["images_per_s"]


def largest_model(paper: Paper, cell: PaperCell) -> Metrics:
    """Return the weights of the deepest network of a model's width that a system can train in a device's machine."""
    of = paper.systems[cell.system]["of"]
    own = replace(cell, system=of)
    made = compose_cells(paper, [own])[own]
    step = {
        "batch_size": made["batch_size"],
        "precision": made["precision"],
        "channels_last": False,
        "strategy": {"name": paper.systems[of]["strategy"], **paper.systems[of].get("set", {})},
        "optimizer": made["optimizer"],
    }
    module = made["model"]["module"]
    small, large = (
        predictor_of(step | {"model": made["model"] | {"module": module | {"num_hidden_layers": depth}}})
        for depth in DEPTHS
    )
    device, machine = configuration.load("device", paper.devices[cell.device]), instantiate(made["machine"])
    return {"largest_parameters": largest_parameters(small, large, device=device, machine=machine)}
