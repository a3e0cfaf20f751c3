"""Encodings of synthetic maps: sizes by really encoding them, times by the cost model (EPMC, Sections 5.3 to 5.5)."""

import statistics

import torch
from torch import Tensor

from membench.codecs.classic import COO, DIA, ELL
from membench.codecs.rows import csr, vp_encoding
from membench.core.codec import ActivationCodec, Codec
from membench.core.cost_model import CostModel
from membench.core.errors import MembenchError
from membench.core.task_graph import Kind, Phase, Task

SPARSITIES_PERCENT = (10, 20, 30, 40, 50, 60, 70, 80, 90)
TIMED_SPARSITY_PERCENT = 50  # Section 5.3
ENCODED_ROWS = 2000  # at most: more rows of random numbers have the same ratios
_CODECS = ("vp", "csr", "coo", "ell", "dia")


class MapStudy:
    """What a cell with ``study=encodings`` does instead of a step.

    Args:
        codec: which encoding.
        streams: that it is spread over; matters for time.

    Raises:
        MembenchError: there is no such codec.
    """

    def __init__(self, codec: str, streams: int) -> None:
        if codec not in _CODECS:
            raise MembenchError(f"there is no codec {codec!r}; choose of {', '.join(_CODECS)}")
        self._codec: Codec = {
            "vp": vp_encoding(streams=streams),
            "csr": csr(streams=streams),
            "coo": COO(),
            "ell": ELL(),
            "dia": DIA(),
        }[codec]

    def metrics(self, rows: int, columns: int, cost: CostModel) -> dict[str, float]:
        """Return what a record says of an encoding and a map of that shape.

        ``footprint_ratio:<percent of zeros>`` is the dense size over the encoded one; times are of a map half of whose
        elements are zero, alone, and before and beside a ReLU. Beside it both take as long as the longer one (Equation 1).
        """
        encoded_rows = min(rows, ENCODED_ROWS)
        order = torch.rand(encoded_rows * columns, generator=torch.Generator().manual_seed(0))
        ratios = {percent: self._ratio(order, percent) for percent in SPARSITIES_PERCENT}
        return {
            **{f"footprint_ratio:{percent}": ratio for percent, ratio in ratios.items()},
            "mean_footprint_ratio": statistics.fmean(ratios.values()),
            "break_even_sparsity_percent": self._break_even_percent(order),
            **self._times(rows * columns, cost),
        }

    def _times(self, elements: int, cost: CostModel) -> dict[str, float]:
        if not isinstance(self._codec, ActivationCodec):
            return {}
        dense_bytes = torch.float32.itemsize * elements
        nonzeros = elements * (100 - TIMED_SPARSITY_PERCENT) // 100
        encode_s = cost.codec_time_s(self._codec, dense_bytes, self._codec.size_bytes(elements, nonzeros))
        relu = Task(0, "relu", Kind.RELU, Phase.FORWARD, 0, (), (), (), moved_bytes=2 * dense_bytes)
        relu_s = cost.launch_time_s(relu) + cost.task_time_s(relu)
        return {
            "encode_time_s": encode_s,
            "in_series_time_s": encode_s + relu_s,
            "in_parallel_time_s": max(encode_s, relu_s),
        }

    def _ratio(self, order: Tensor, sparsity_percent: float) -> float:
        tensor = (order >= sparsity_percent / 100).float()
        return tensor.nbytes / max(1, self._codec.encode(tensor).size_bytes)

    def _break_even_percent(self, order: Tensor) -> float:
        """Return how many zeros it takes for encoding to save memory, to half a percent; 100 where it never does."""
        low, high = 0.0, 100.0
        while high - low > 0.5:
            middle = (low + high) / 2
            if self._ratio(order, middle) >= 1:
                high = middle
            else:
                low = middle
        return high
