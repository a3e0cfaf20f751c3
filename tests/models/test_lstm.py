from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from membench.capture.capture import capture
from membench.core.graph.task_graph import Role, TaskGraph
from membench.core.step.workload import Workload
from membench.models.lstm import LSTM, SequenceLoss, acoustic_model, language_model

Build = Callable[[str], nn.Module]


def _captured(*, steps: int) -> TaskGraph:
    with torch.device("meta"):
        module = language_model(vocabulary=20, hidden_size=16, layers=2)
        tokens = torch.randint(20, (3, steps))
        return capture(Workload("lstm", module, SequenceLoss(), (tokens,), (tokens,))).graph


def test_a_layer_computes_the_same_as_in_torch() -> None:
    layer, reference = LSTM(5, 7).double(), nn.LSTM(5, 7).double()
    with torch.no_grad():
        reference.weight_ih_l0.copy_(layer.cell.weight_ih)
        reference.weight_hh_l0.copy_(layer.cell.weight_hh)
        reference.bias_ih_l0.copy_(layer.cell.bias)
        reference.bias_hh_l0.zero_()
    steps = torch.randn(6, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(torch.stack(layer(steps.unbind())), reference(steps)[0])


def test_the_loss_is_the_mean_over_steps_and_sequences() -> None:
    logits, targets = torch.randn(3, 4, 5), torch.randint(5, (3, 4))
    expected = torch.stack([nn.functional.cross_entropy(logits[:, t], targets[:, t]) for t in range(4)]).mean()
    torch.testing.assert_close(SequenceLoss()(logits, targets), expected)


@pytest.mark.parametrize(
    ("network", "inputs"),
    [
        (language_model(vocabulary=11, hidden_size=6, layers=2), torch.randint(11, (3, 5))),
        (acoustic_model(features=4, hidden_size=6, layers=3, classes=11), torch.randn(3, 5, 4)),
    ],
)
def test_each_step_gets_logits_that_later_steps_do_not_change(network: nn.Module, inputs: Tensor) -> None:
    logits = network(inputs)
    assert logits.shape == (3, 5, 11)
    torch.testing.assert_close(network(inputs[:, :3]), logits[:, :3])


def test_parameters_of_the_language_model(configured_model: Build) -> None:
    """Zaremba et al.'s medium network: embedding, two layers of four gates, classifier."""
    expected = 10_000 * 650 + 2 * 4 * 650 * (650 + 650 + 1) + 650 * 10_000 + 10_000
    actual = sum(parameter.numel() for parameter in configured_model("lstm_rnn").parameters())
    assert actual == expected == 19_775_200


def test_the_speech_model_is_the_widest_that_the_stated_parameters_allow(configured_model: Build) -> None:
    def parameter_bytes(network: nn.Module) -> int:
        return sum(parameter.nbytes for parameter in network.parameters())

    with torch.device("meta"):
        wider = acoustic_model(features=39, hidden_size=1152 + 128, layers=4, classes=34)
    assert parameter_bytes(configured_model("lstm_speech")) <= 148 * 2**20 < parameter_bytes(wider)


def test_each_step_of_each_layer_is_a_layer_of_the_graph() -> None:
    graph = _captured(steps=5)
    names = [graph.layers[run.layer] for run in graph.forward_layers]
    cells = [f"layers.{layer}.cell{'' if step == 1 else f'#{step}'}" for layer in (0, 1) for step in range(1, 6)]
    assert [name for name in names if ".cell" in name] == cells
    backward = [graph.layers[run.layer] for run in graph.backward_layers]
    assert [name for name in backward if ".cell" in name] == cells[::-1]


@pytest.mark.slow
def test_a_step_more_adds_the_same_tasks_and_no_gradient_of_a_weight() -> None:
    short, longer, longest = (_captured(steps=steps) for steps in (6, 7, 8))
    assert len(longest.tasks) - len(longer.tasks) == len(longer.tasks) - len(short.tasks) > 0
    for graph in (short, longest):
        created = [graph.blocks[block] for task in graph.tasks for block in task.creates]
        held = [block for block in created if block.role is Role.WEIGHT_GRADIENT]
        assert len(held) == len(graph.gradients)
