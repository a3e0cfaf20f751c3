"""Problems: what can be made again, and together with what."""

import torch
from torch import nn

from membench.planning.choices.problem import Problem
from tests.helpers.planning.chains import graph_of
from tests.helpers.planning.costs import UnitCost


def test_a_dropouts_output_is_made_again_from_its_mask_which_is_not() -> None:
    with torch.device("meta"):
        graph = graph_of(nn.Sequential(nn.Conv2d(8, 3, 1), nn.Dropout(), nn.AvgPool2d(16), nn.Flatten()), 8, 16)
    problem = Problem(graph, UnitCost(), 1)
    dropout = next(task for task in graph.tasks if "dropout" in task.name)
    output, mask = (problem.units[problem.unit_of[block]] for block in dropout.creates)
    assert output.makers == (dropout.index,)
    assert set(mask.blocks) <= set(output.inputs)
    assert not mask.makers
