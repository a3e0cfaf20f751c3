"""Torch7 over cuDNN: the baseline of vDNN (Rhu et al., arXiv 1602.08124v2, Section 2.3).

Facts of the published modules (torch/nn and cudnn.torch as of cuDNN 4), none of their code:

- ``cudnn.ReLU(true)`` works in place; its backward reads its output. So do the networks that vDNN trains.
- ``cudnn.SpatialMaxPooling`` and ``SpatialAveragePooling`` hand input, output and incoming gradient to cuDNN, which has
  one signature for all poolings; no index is kept.
- ``cudnn.SpatialBatchNormalization`` keeps its input and two vectors, the batch's mean and inverse deviation. One call
  computes the gradients of input, factors and biases.
- ``cudnn.SpatialCrossMapLRN`` reads input and output. ``nn.Dropout`` is not in place by default and keeps its noise, a
  float per element. ``nn.CrossEntropyCriterion`` keeps the log-probabilities.
- ``nn.CAddTable`` copies the gradient for each input. ``nn.Concat`` hands out views of it; cudnn.torch makes contiguous
  copies. ``nn.ConcatTable`` and ``nn.Concat`` sum the gradients of their branches up in a gradient of their own: for
  memory that is equal to Caffe's Split, but there is no such module. These three are our reading for networks that
  branch, which vDNN's text does not treat.
- A weight has a gradient but no momentum: vDNN counts weights and their gradients.

vDNN pools memory with cnmem and counts what the pool serves, without the context. Each activation has its gradient
here; that the gradients share two buffers is decided by the strategy (`NetworkWide`).
"""

from dataclasses import replace
from typing import ClassVar

from membench.core.graph.task_graph import Kind, TaskGraph
from membench.frameworks import layers
from membench.frameworks.base import Framework
from membench.frameworks.layers import LayerLibrary, LayerType
from membench.frameworks.lowering import lower_layers

CONVOLUTION = layers.convolution("cudnn.SpatialConvolution")
LINEAR = layers.inner_product("nn.Linear")
BATCH_NORM = layers.cudnn_batch_norm("cudnn.SpatialBatchNormalization", "mean", "inverse deviation")
RELU = LayerType("cudnn.ReLU", Kind.RELU, ("relu", "relu_"), may_be_in_place=True, reads_output=True)
DROPOUT = LayerType("nn.Dropout", Kind.DROPOUT, ("native_dropout",), ("copy_",), keeps=("noise",))
MAX_POOLING = layers.cudnn_pooling("cudnn.SpatialMaxPooling", "max_pool2d_with_indices")
AVERAGE_POOLING = layers.cudnn_pooling("cudnn.SpatialAveragePooling", "avg_pool2d", "mean")
ADAPTIVE_POOLING = replace(AVERAGE_POOLING, marks=("_adaptive_avg_pool2d",), vanishes_at_same_size=True)
LRN = layers.local_response_norm("cudnn.SpatialCrossMapLRN")
SUM = LayerType("nn.CAddTable", Kind.ADD, ("add", "add_"))
CONCATENATION = LayerType("nn.JoinTable", Kind.CONCATENATE, ("cat",))
ZERO_CHANNELS = LayerType("nn.MulConstant(0) joined", Kind.CONCATENATE, ("constant_pad_nd",))
CROSS_ENTROPY = layers.softmax_loss("nn.CrossEntropyCriterion", "log-probabilities")

TORCH7 = LayerLibrary(
    framework="Torch7",
    types=(
        CONVOLUTION, LINEAR, BATCH_NORM, RELU, DROPOUT, MAX_POOLING, AVERAGE_POOLING, ADAPTIVE_POOLING, LRN, SUM,
        CONCATENATION, ZERO_CHANNELS,
    ),
    loss=CROSS_ENTROPY,
    sum_name="sum of gradients",
)  # fmt: skip


class Torch7(Framework):
    """Torch7 over cuDNN; all its memory lies in the graph's blocks."""

    name: ClassVar[str] = "torch7"

    def lower(self, graph: TaskGraph) -> TaskGraph:
        return lower_layers(graph, TORCH7)
