import pytest
import torch

from membench.capture.operators.aten import floating_point_operations
from membench.capture.operators.lstm import lstm_workspace_bytes


@pytest.mark.parametrize(
    ("sizes", "size_bytes"),
    [
        ((1, 1, 1, 1), 28672),
        ((11, 3, 5, 7), 45056),
        ((1, 64, 256, 64), 1052672),
        ((11, 64, 64, 64), 2912256),
        ((20, 64, 100, 100), 8388608),
        ((20, 64, 512, 256), 29253632),
    ],
)
def test_the_workspace_of_an_lstm_is_what_onednn_made_on_a_cpu_with_avx2(
    sizes: tuple[int, int, int, int], size_bytes: int
) -> None:
    assert lstm_workspace_bytes(*sizes) == size_bytes


def test_an_lstm_has_the_products_of_four_gates_and_its_backward_pass_twice_as_many() -> None:
    steps, state = torch.empty(7, 4, 3), torch.empty(4, 5)
    weights = torch.empty(20, 3), torch.empty(20, 5), torch.empty(20), torch.empty(20)
    args = (steps, *weights, state, state)
    layer, backward = (torch.ops.aten.mkldnn_rnn_layer.default, torch.ops.aten.mkldnn_rnn_layer_backward.default)
    assert floating_point_operations(layer, args, {}, steps) == 7 * 4 * 2 * 20 * (3 + 5)
    assert floating_point_operations(backward, args, {}, steps) == 2 * 7 * 4 * 2 * 20 * (3 + 5)
