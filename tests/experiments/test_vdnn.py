"""vDNN's paper: the two definitions of memory, and the rows of each."""

from membench.lab.papers.reading.experiment import Answer, Row
from membench.lab.papers.reading.loader import load_paper
from tests.helpers.lab.papers import EXPERIMENTS

VDNN = load_paper(EXPERIMENTS / "vdnn")
ANSWERS: list[tuple[Row, Answer]] = [pair for experiment in VDNN.experiments for pair in experiment.rows]
TOTALS = {"memory_usage", "max_memory", "memory_free", "memory_growth", "max_memory_reduction_avg", "memory"}
AVERAGES = {"average_memory_reduction", "avg_memory_reduction_avg", "avg_memory"}


def test_totals_are_what_the_step_requires_and_averages_what_vdnn_manages() -> None:
    found: dict[str, set[str]] = {"totals": set(), "averages": set()}
    for row, answer in ANSWERS:
        kind = "totals" if row.metric in TOTALS else "averages" if row.metric in AVERAGES else ""
        if kind and answer.value and row.value is not None:
            found[kind] |= {answer.value.metric, answer.value.reference.get("metric", answer.value.metric)}
    capacity, out_of_memory = "capacity_bytes", "peak_memory_bytes"
    assert found["totals"] - {capacity, out_of_memory} == {"required_memory_bytes"}
    assert found["averages"] == {"managed_average_bytes"}


def test_the_average_of_vgg_16_is_over_its_four_batch_sizes() -> None:
    """Only so do the paper's averages agree with its mean of vDNN_dyn over the networks of Figure 9."""
    stated = {row.claim_id: row.value for row, _ in ANSWERS if row.value is not None}
    [answer] = [answer for row, answer in ANSWERS if row.claim_id == "V069"]
    assert answer.value is not None
    batches = answer.value.over["model"]
    assert len(batches) == 4
    mean = (stated["V001"] + stated["V002"] + len(batches) * stated["V069"]) / (2 + len(batches))
    assert mean == stated["V045"]
