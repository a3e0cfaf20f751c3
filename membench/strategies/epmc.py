"""EPMC: efficient parallel memory compression in deep neural network training (PyTorch).

The maps that the backward pass will read stay on the device, compressed. Decides which maps (Section 4.4), how they are
encoded (VPEncoding, 4.3), over how many streams (PipeCompress, 4.1), and what runs beside (4.2):

    forward:   convolution,  then  encode its input   beside  its ReLU
    backward:  gradient of the ReLU  beside  decode the convolution's input,  then  gradients of the convolution

Of m streams m - 1 share the rows of a map among them, and one runs the ReLU. The forward pass reads unrounded maps; only
gradients see the rounding. A ReLU's output is the next convolution's input, so one encoded copy serves both gradients.

The paper marks Conv-ReLU pairs and gives no rule by sparsity; here each map made sparse by ReLUs is taken, one behind a
pooling too, unless encoding would make it larger. Its two statements on what runs beside what differ (3.2.2): this is
the one that the data allows.

Encoded sizes depend on the data, and memory is planned before it. So room is made for a `density`: given, or measured by
`membench.steps.densities`, which ``strategy.density=measured`` asks a cell for. A map with more non-zeros than that is an error
(`EncodingOverflow`); at the default of 1 nothing can go wrong, and half precision and narrow indices still make maps a
quarter smaller.

Not Gist, which stores one bit where that is enough; not vDNN, which sends maps to the host. `SerialCsr` is what the paper
compares with: CSR in single precision with 32-bit indices, by one stream, between the layers (5.1.3).
"""

from membench.codecs.rows import csr, vp_encoding
from membench.core.cost_model import CostModel
from membench.core.schedule import COMPUTE_STREAM, Schedule
from membench.core.task_graph import TaskGraph
from membench.planning.rewrite import join_convolution_backward
from membench.strategies.base import Strategy
from membench.strategies.compression import Density, checked, compress, encodable_maps, worth_encoding

CODEC_STREAM = "codec"


class Epmc(Strategy):
    """Args:
    values: format of the values that are kept: fp16, fp10 or fp8; with fp32 nothing is lost.
    density: see above.
    streams: m; the paper's experiments have seven for PipeCompress (Section 5.4).
    """

    name = "epmc"

    def __init__(self, values: str = "fp16", density: Density = 1.0, streams: int = 8) -> None:
        self._codec = vp_encoding(values=values, streams=streams - 1)
        self._density = checked(density)

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = cost.annotate(join_convolution_backward(graph))
        codecs = worth_encoding(graph, encodable_maps(graph), self._codec, self._density)
        return compress(self.name, graph, budget_bytes, codecs, self._density, stream=CODEC_STREAM)


class SerialCsr(Strategy):
    """Args:
    density: see above; at more than a half CSR makes no map smaller.
    """

    name = "serial_csr"

    def __init__(self, density: Density = 1.0) -> None:
        self._density = checked(density)

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = cost.annotate(join_convolution_backward(graph))
        codecs = worth_encoding(graph, encodable_maps(graph), csr(), self._density)
        return compress(self.name, graph, budget_bytes, codecs, self._density, stream=COMPUTE_STREAM)
