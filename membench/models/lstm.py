"""Recurrent networks of LSTM layers, unrolled layer by layer and step by step.

Hochreiter, Schmidhuber: "Long Short-Term Memory" (1997), with forget gates and without peepholes. Each time step of
each layer is one module call, so one layer of the captured graph, whose operators strategies can schedule; the weights
are shared by all steps. Not ``torch.nn.LSTM``, whose steps are one operator on a GPU.

Layrub names a language model (Figure 11) and a speech model of four layers (Table 1) and states neither's width. The
chosen widths and the reasons are in ``conf/model/lstm_rnn.yaml`` and ``lstm_speech.yaml``.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class LSTMCell(nn.Module):
    """One time step; the four gates are stacked in the order input, forget, cell, output, as in ``nn.LSTMCell``."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.empty(4 * hidden_size))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden_size**-0.5), hidden_size**-0.5)

    def forward(self, x: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new hidden and cell state, from an input and states of one row per sequence."""
        gates = functional.linear(x, self.weight_ih, self.bias) + functional.linear(hidden, self.weight_hh)
        entering, kept, candidate, leaving = gates.chunk(4, dim=1)
        cell = torch.sigmoid(kept) * cell + torch.sigmoid(entering) * torch.tanh(candidate)
        return torch.sigmoid(leaving) * torch.tanh(cell), cell


class LSTM(nn.Module):
    """One layer over all time steps, from states of zero."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.cell = LSTMCell(input_size, hidden_size)

    def forward(self, steps: Sequence[Tensor]) -> list[Tensor]:
        """Return the hidden state of each step, from the steps' inputs, each (sequences, input size)."""
        hidden = cell = steps[0].new_zeros(steps[0].shape[0], self.hidden_size)
        outputs = []
        for x in steps:
            hidden, cell = self.cell(x, hidden, cell)
            outputs.append(hidden)
        return outputs


class RecurrentNetwork(nn.Module):
    """An encoder of the inputs, LSTM layers on top of each other, and a classifier of every step.

    Args:
        encoder: turns inputs (steps, sequences, ...) into (steps, sequences, `input_size`).
    """

    def __init__(self, encoder: nn.Module, *, input_size: int, hidden_size: int, layers: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        sizes = [input_size] + [hidden_size] * (layers - 1)
        self.layers = nn.ModuleList(LSTM(size, hidden_size) for size in sizes)
        self.classifier = nn.Linear(hidden_size, classes)

    def forward(self, sequences: Tensor) -> Tensor:
        """Return logits (sequences, steps, classes) of inputs (sequences, steps, ...)."""
        # unbind, not indexing: the gradient of each x[t] would be as large as all steps together
        steps: list[Tensor] = list(self.encoder(sequences.transpose(0, 1)).unbind())
        for layer in self.layers:
            steps = layer(steps)
        return self.classifier(torch.stack(steps, dim=1))


def language_model(*, vocabulary: int, hidden_size: int, layers: int) -> RecurrentNetwork:
    """Return a network that predicts at each step the next token; embeddings are as wide as the LSTM layers."""
    embedding = nn.Embedding(vocabulary, hidden_size)
    return RecurrentNetwork(
        embedding, input_size=hidden_size, hidden_size=hidden_size, layers=layers, classes=vocabulary
    )


def acoustic_model(*, features: int, hidden_size: int, layers: int, classes: int) -> RecurrentNetwork:
    """Return a network that classifies each frame of speech, which comes as a vector of features."""
    return RecurrentNetwork(nn.Identity(), input_size=features, hidden_size=hidden_size, layers=layers, classes=classes)


class SequenceLoss(nn.Module):
    """Cross entropy, averaged over all steps of all sequences."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
