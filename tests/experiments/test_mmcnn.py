"""mmCNN's Algorithm 1 against the numbers of parts that its Table 3 prints."""

import torch

from membench.capture.capture import capture
from membench.core.units import MIB
from membench.core.workload import Workload
from membench.models.vgg import vgg_without_average
from membench.papers.loader import read_reference
from membench.strategies.mmcnn.strategy import algorithm_1, layers_of
from tests.helpers.papers import EXPERIMENTS


def test_the_rule_gives_table_3_but_for_one_number() -> None:
    with torch.device("meta"):
        work = Workload("vgg19", vgg_without_average(19).eval(), None, (torch.empty(1, 3, 224, 224),))
    layers = layers_of(capture(work).graph)
    rows = [row for row in read_reference(EXPERIMENTS / "mmcnn" / "reference.csv") if row.item == "Table 3"]
    different = []
    for limit_mib in (200, 100, 50, 10, 5):
        decisions = algorithm_1(layers, limit_mib * MIB, pn_max=5)
        for row in rows:
            if row.system.endswith(f" {limit_mib} MB"):
                ours = getattr(decisions[int(row.note.removeprefix("layer ")) - 1], row.metric)
                different += [(row.note, row.metric, limit_mib)] * (ours != row.value)
    assert len(rows) == 430
    assert different == [("layer 3", "conv_number", 5)]  # the paper takes another layer's weights
