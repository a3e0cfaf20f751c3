"""EPMC: efficient parallel memory compression in deep neural network training (PyTorch).

The activations that the backward pass will read stay on the device, compressed. The method chooses the activations
(Section 4.4), their encoding (VPEncoding, 4.3), the number of streams (PipeCompress, 4.1), and what runs in parallel
(4.2):

    forward:   convolution,  then  encode its input  alongside  its ReLU
    backward:  gradient of the ReLU  alongside  decode the convolution's input,  then  gradients of the convolution

Of m streams m - 1 share the rows of an activation among them, and one runs the ReLU. The forward pass reads unrounded
activations; only gradients see the rounding. A ReLU's output is the next convolution's input, so one encoded copy
serves both gradients.

The paper marks Conv-ReLU pairs and gives no rule by sparsity; here every activation made sparse by ReLUs is encoded,
one behind a pooling too, unless encoding would make it larger. One that no Conv-ReLU pair reads is encoded and decoded
between the layers. The paper's two statements on what runs in parallel differ (3.2.2); this is the one that the data
allows.

Encoded sizes depend on the data, and memory is planned before the data is there. So the plan is made for a `density`:
given, or measured by `membench.steps.densities` (``strategy.density=measured`` in a cell). An activation with more
non-zeros is an error (`EncodingOverflow`); at the default of 1 nothing can go wrong, and half precision and narrow
indices still make activations a quarter smaller.

Not Gist, which stores one bit where that is enough; not vDNN, which offloads activations to the host. `SerialCsr` is
the paper's baseline.
"""

from membench.codecs.rows import csr, vp_encoding
from membench.core.graph.schedule import COMPUTE_STREAM, Schedule
from membench.core.graph.task_graph import TaskGraph
from membench.core.hardware.cost_model import CostModel
from membench.planning.rewrites.rewrite import join_convolution_backward
from membench.strategies.base import Strategy
from membench.strategies.compression import Density, check_density, compress, worth_encoding

CODEC_STREAM = "codec"


class Epmc(Strategy):
    """EPMC: compress sparse activations on streams of their own, in narrow number formats (Sections 4.1 to 4.4).

    Args:
        values: format of the stored values: fp16, fp10 or fp8; fp32 loses nothing.
        density: the largest fraction of non-zeros that is planned for (see the module).
        streams: m; the paper's experiments have seven for PipeCompress (Section 5.4).
    """

    name = "epmc"
    plans_for_budgets = False

    def __init__(self, values: str = "fp16", density: Density = 1.0, streams: int = 8) -> None:
        self._codec = vp_encoding(values=values, streams=streams - 1)
        self._density = check_density(density)

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = join_convolution_backward(graph, cost)
        codecs = worth_encoding(graph, self._codec, self._density)
        return compress(self.name, graph, budget_bytes, codecs, self._density, stream=CODEC_STREAM)


class SerialCsr(Strategy):
    """EPMC's baseline: single-precision CSR, 32-bit indices, encoded by one stream between layers (5.1.3).

    Args:
        density: as for `Epmc`; above one half CSR makes no activation smaller.
    """

    name = "serial_csr"
    plans_for_budgets = False

    def __init__(self, density: Density = 1.0) -> None:
        self._density = check_density(density)

    def schedule(self, graph: TaskGraph, cost: CostModel, budget_bytes: int | None) -> Schedule:
        graph = join_convolution_backward(graph, cost)
        codecs = worth_encoding(graph, csr(), self._density)
        return compress(self.name, graph, budget_bytes, codecs, self._density, stream=COMPUTE_STREAM)
