"""MXNet over cuDNN, as of 2016 and 2017: the baseline that Layrub sets memonger against.

Facts of its published sources (dmlc/mxnet, which became apache/mxnet; read at the state of October 2017), none of its
code. An operator declares the data that its backward reads, and where it may work in place
(``DeclareBackwardDependency``, ``FInplaceOption``); the executor plans memory from that before the run, in storages
(`strategies.memonger`).

- ``Activation``: with cuDNN its backward reads input and output, so the forward pass is *not* in place; its gradient
  takes the place of the one that it receives (``activation-inl.h``). Only a build without cuDNN reads the output alone.
- ``BatchNorm`` reads its input, and keeps the batch's mean and inverse deviation (``cudnn_batch_norm-inl.h``).
- ``Pooling`` hands input, output and gradient to cuDNN, maximum and average alike (``pooling-inl.h``).
- ``Dropout`` is in place where no other layer reads its input, and keeps a mask, a float per element
  (``dropout-inl.h``).
- ``LRN`` reads input and output; it always has a full-size ``tmp_norm``, which cuDNN does not use (``lrn-inl.h``).
- ``SoftmaxOutput`` keeps the probabilities. ``Concat`` reads no data; each input gets a copy of its part.
- ``elemwise_add``: its first input's gradient is the one that it receives, its second's a copy of that
  (``_backward_add``). The gradients of an output with several readers are summed up in the first (``ElementWiseSum``).
- Each argument has an array for its gradient, allocated when the network is bound. The momentum is as large as the
  weight (``sgd_mom_update``); it lies where the weight does, on the device.
- A key-value store keeps weights of its own, which its updater moves to the device with the first gradient from there
  (``kvstore_local.h``). ``Module.fit`` makes no store for a single device, but uses the one that it is given
  (``model.py``), and the trainings that come with MXNet give it one (``example/image-classification/common/fit.py``).
  That a paper's training does so as well is assumed.
- Arrays and storages are allocations of their own, rounded up as such.
- The workspaces of all operators are one array, as large as the largest; it stays (``resource.cc``, one copy on a GPU).

The two gradients of a convolution are one operator; they are two tasks here, which need no more memory than one.
"""

from dataclasses import replace
from typing import ClassVar

from membench.core.graph.task_graph import Kind, TaskGraph
from membench.core.hardware.efficiency import Efficiency
from membench.frameworks import layers
from membench.frameworks.autotuner import Autotuner
from membench.frameworks.base import Framework, lost_to_rounding_bytes
from membench.frameworks.layers import LayerLibrary, LayerType
from membench.frameworks.lowering import lower_layers

CONVOLUTION = layers.convolution("Convolution")
FULLY_CONNECTED = layers.inner_product("FullyConnected")
BATCH_NORM = layers.cudnn_batch_norm("BatchNorm", "mean", "inverse deviation")
ACTIVATION = LayerType(
    "Activation", Kind.RELU, ("relu", "relu_"), reads_input=True, reads_output=True, gradient_in_place=True
)
DROPOUT = LayerType(
    "Dropout",
    Kind.DROPOUT,
    ("native_dropout",),
    ("copy_",),
    may_be_in_place=True,
    keeps=("mask",),
    gradient_in_place=True,
)
POOLING = layers.cudnn_pooling("Pooling", "max_pool2d_with_indices", "avg_pool2d", "mean")
ADAPTIVE_POOLING = replace(POOLING, marks=("_adaptive_avg_pool2d",), vanishes_at_same_size=True)
LRN = replace(
    layers.local_response_norm("LRN"),
    keeps=("norm",),
    forward_passes=2,  # cuDNN reads the input and writes the output
    data_passes=4,  # input, output, both gradients
)
SUM = LayerType("elemwise_add", Kind.ADD, ("add", "add_"), forwards_gradient_to=1)
CONCATENATION = LayerType("Concat", Kind.CONCATENATE, ("cat",))
ZERO_CHANNELS = LayerType("Concat", Kind.CONCATENATE, ("constant_pad_nd",))  # with a constant array of zeros
SOFTMAX_OUTPUT = layers.softmax_loss("SoftmaxOutput", "probabilities")

MXNET = LayerLibrary(
    framework="MXNet",
    types=(
        CONVOLUTION, FULLY_CONNECTED, BATCH_NORM, ACTIVATION, DROPOUT, POOLING, ADAPTIVE_POOLING, LRN, SUM,
        CONCATENATION, ZERO_CHANNELS,
    ),
    loss=SOFTMAX_OUTPUT,
    sum_name="sum of gradients",
    weight_states=("momentum", "weight in the store"),
    sums_in_place=True,
)  # fmt: skip


class MXNet(Framework):
    """MXNet over cuDNN.

    Args:
        efficiency: efficiency of its kernels.
        context_bytes: held by the process on the device for any network.
        autotuner: chooses the algorithms of convolutions; the largest of their workspaces is held for the whole run.
        has_store: whether a key-value store keeps weights of its own on the device.
    """

    name: ClassVar[str] = "mxnet"

    def __init__(
        self, efficiency: Efficiency, context_bytes: int, autotuner: Autotuner, has_store: bool = True
    ) -> None:
        super().__init__(efficiency)
        self._context_bytes = context_bytes
        self._autotuner = autotuner
        self._library = MXNET if has_store else replace(MXNET, weight_states=("momentum",))

    def lower(self, graph: TaskGraph) -> TaskGraph:
        lowered = lower_layers(graph, self._library)
        workspace_bytes = max(self._autotuner.workspace_bytes(task) for task in lowered.tasks)
        overhead_bytes = self._context_bytes + workspace_bytes + lost_to_rounding_bytes(lowered)
        return replace(lowered, overhead_bytes=overhead_bytes)
