"""oneDNN's LSTM on the CPU, an operator for each layer and direction: operations, and what it keeps."""

from torch import Tensor

LAYER, LAYER_BACKWARD = "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"
"""Names of the operators."""

_PAGE_BYTES = 4096
_LINE_BYTES = 64


def lstm_operations(operator: str, args: tuple[object, ...]) -> int:
    """Return the operations of a layer's products, which has four gates; the backward pass has two each.

    Args:
        args: the operator's; the sequence and the two weights first.
    """
    steps, weights = args[0], args[1:3]
    assert isinstance(steps, Tensor)
    products = sum(weight.numel() for weight in weights if isinstance(weight, Tensor))
    return 2 * steps.shape[0] * steps.shape[1] * products * (2 if operator == LAYER_BACKWARD else 1)


def with_lstm_workspace(args: tuple[object, ...], output: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """Return a layer's outputs with the workspace for its backward pass, None unless the last argument asks for it."""
    if not args[-1]:
        return *output[:-1], None
    steps = args[0]
    assert isinstance(steps, Tensor)
    count, sequences, input_size = steps.shape
    size_bytes = lstm_workspace_bytes(count, sequences, input_size, output[0].shape[2], steps.itemsize)
    return *output[:-1], output[-1].new_empty(size_bytes)


def lstm_workspace_bytes(steps: int, sequences: int, input_size: int, hidden_size: int, itemsize: int = 4) -> int:
    """Return the bytes of oneDNN's workspace of a layer.

    The gates, the hidden state, three states or gradients as wide as the wider of input and state, and two cell states,
    each on pages of its own (oneDNN's ``rnn_utils.cpp``, `set_offsets`). Kernels that newer CPUs have pad rows
    differently; a step that runs for real takes the size that is seen there.
    """
    rows = steps * sequences
    states = 2 * (steps + 1) * sequences  # of the layer's input and output, before and after each step
    widest = _padded(max(input_size, hidden_size), itemsize)
    sizes = [
        rows * _padded(4 * hidden_size, itemsize),
        rows * _padded(hidden_size, itemsize),
        *[states * widest] * 3,
        *[states * hidden_size] * 2,
    ]
    return sum(-(-size * itemsize // _PAGE_BYTES) * _PAGE_BYTES for size in sizes)


def _padded(width: int, itemsize: int) -> int:
    """Return the elements of a row: whole cache lines, not a multiple of 256, as that would share cache sets."""
    line = _LINE_BYTES // itemsize
    padded = -(-width // line) * line
    return padded + line if padded % 256 == 0 else padded
