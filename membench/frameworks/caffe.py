"""Caffe: the network as blobs and layers, as Layrub's baseline keeps it.

See `lowering`. A blob with several readers passes a Split layer, which sums up their gradients (Layrub's Figure 9
counts all of these). Internal blocks of layers are not part of Figure 9, but of Table 6. A weight has a gradient and a
momentum.

Facts of BVLC Caffe with cuDNN (the layers' published sources, branch master of 2016 to 2018), none of its code:

- ``BatchNorm`` keeps its normalised output (``x_norm_``) and the standard deviations spread to full size (``temp_``);
  its backward reads both. In place it first saves the incoming gradient to ``x_norm_``'s gradient: a third full-size
  blob.
- ``Scale`` in place keeps a copy of its input (``temp_``) for the gradient of its factors.
- ``ReLU`` in place reads its output; ``Pooling`` keeps the index of each maximum (``max_idx_``, an int each), because
  Caffe does not give max pooling to cuDNN where in-place layers follow; average pooling keeps nothing. Its own kernels
  visit each window number by number, and backward each number's windows (``pooling_layer.cu``).
- ``Pooling3D``, which P3D's authors added (ZhaofanQiu/pseudo-3d-residual-networks), keeps the same index.
- ``LRN`` runs on cuDNN and keeps nothing; its backward reads input and output. (Caffe's own kernel keeps ``scale_``.)
- ``Dropout`` keeps a 32-bit random number per element (``rand_vec_``); ``SoftmaxWithLoss`` keeps ``prob_``.
- ``Convolution`` and ``InnerProduct`` keep nothing full-size: workspace and handles are the framework's constants. A
  convolution's bias is added by a kernel of its own, and has one for its gradient (``cudnn_conv_layer.cu``).
- ``Split`` adds the gradients of an output's readers one after another (``split_layer.cu``).
- ``Eltwise`` (SUM) and ``Concat`` copy the gradient for each input; they read no data. A sum is set to zero, then each
  input is added to it.
"""

from dataclasses import replace
from typing import ClassVar

from membench.core.graph.task_graph import ARGUMENT_ROLES, Kind, Phase, TaskGraph
from membench.core.hardware.efficiency import Efficiency
from membench.frameworks import layers
from membench.frameworks.base import Framework, lost_to_rounding_bytes
from membench.frameworks.layers import LayerLibrary, LayerType, WindowPasses
from membench.frameworks.lowering import lower_layers

MAX_POOLING_PASSES = WindowPasses(forward=(4.6, 0.39), backward=(7.6, 0.56))
"""Published times of Caffe's own kernels over those of ReLU beside them, which makes 2 and 3 passes.

soumith/convnet-benchmarks, commit de7cfc3 (VGG-A, 64 images; GoogLeNet, 128), by its README a Titan Black, the K40's
chip.
Forward 6.1 passes over the output for windows of 2 x 2, 8.8 and 7.4 of 3 x 3 with steps of 2 and 1; backward 8.0, 9.1
and 12.7 over the input, whose numbers lie in 1, 2.25 and 9 windows. These two lines go through them within 10 %.
"""

CONVOLUTION = replace(layers.convolution("Convolution"), bias_kernels=True)
INNER_PRODUCT = layers.inner_product("InnerProduct")
BATCH_NORM = LayerType(
    "BatchNorm",
    Kind.BATCH_NORM,
    ("native_batch_norm",),
    ("add_",),
    may_be_in_place=True,
    keeps=("normalized", "deviations"),
    scratch_in_place=("saved gradient",),
    # mean 1, subtraction 2, square 2, its mean 1, deviations spread 1, division 3, copy 2
    forward_passes=12,
    # copy 2, product 3, sum 1, spread 1, product 3, sum 1, spread onto 2, difference 3, division 3
    data_passes=19,
)
SCALE = LayerType(
    "Scale",
    Kind.SCALE,
    (),  # torch's batch norm includes it
    may_be_in_place=True,
    keeps_in_place=("input",),
    reads_input=True,
    parameters_first=True,
    forward_passes=4,  # copy 2, product and sum 2
    parameter_passes=5,  # sum for the bias 1, product 3, its sum 1
    data_passes=2,
)
RELU = LayerType("ReLU", Kind.RELU, ("relu", "relu_"), may_be_in_place=True, reads_output=True)
DROPOUT = LayerType(
    "Dropout", Kind.DROPOUT, ("native_dropout",), ("copy_",), may_be_in_place=True, keeps=("random numbers",)
)
MAX_POOLING = LayerType(
    "Pooling (MAX)", Kind.POOLING, ("max_pool2d_with_indices",), keeps=("index",), window_passes=MAX_POOLING_PASSES
)
VIDEO_MAX_POOLING = replace(MAX_POOLING, name="Pooling3D (MAX)", marks=("max_pool3d_with_indices",))
AVERAGE_POOLING = LayerType("Pooling (AVE)", Kind.POOLING, ("avg_pool2d", "mean"))
ADAPTIVE_POOLING = LayerType("Pooling (AVE)", Kind.POOLING, ("_adaptive_avg_pool2d",), vanishes_at_same_size=True)
LRN = layers.local_response_norm("LRN")
SUM = LayerType(
    "Eltwise (SUM)",  # never in place, as torch's may be
    Kind.ADD,
    ("add", "add_"),
    forward_passes=7,  # zeros 1, then each of two inputs added to them 3
)
CONCATENATION = LayerType("Concat", Kind.CONCATENATE, ("cat",))
ZERO_CHANNELS = LayerType("Concat", Kind.CONCATENATE, ("constant_pad_nd",))  # with a constant blob of zeros
SOFTMAX_LOSS = layers.softmax_loss("SoftmaxWithLoss", "probabilities")

CAFFE = LayerLibrary(
    framework="Caffe",
    types=(
        CONVOLUTION, INNER_PRODUCT, BATCH_NORM, RELU, DROPOUT, MAX_POOLING, VIDEO_MAX_POOLING, AVERAGE_POOLING,
        ADAPTIVE_POOLING, LRN, SUM, CONCATENATION, ZERO_CHANNELS,
    ),
    loss=SOFTMAX_LOSS,
    sum_name="split",
    weight_states=("momentum",),
    scale=SCALE,
    sums_pairwise=True,
)  # fmt: skip


class Caffe(Framework):
    """BVLC Caffe over cuDNN.

    Args:
        efficiency: efficiency of its kernels.
        context_bytes: held by the process on the device for any network.
        group_bytes: held for each group of each convolution for the whole run. A group has three streams and three
            cuDNN handles (``cudnn_conv_layer.cpp``), each with up to 8 MiB of workspace.
        prefetched_batches: batches that the data layer holds on the device, the current one included
            (``base_data_layer.cu``; ``caffe.proto``: prefetch is 4 by default).
        rounds_allocations: whether weights and their states, which are allocations of their own, are rounded up as the
            CUDA driver does.
    """

    name: ClassVar[str] = "caffe"

    def __init__(
        self,
        efficiency: Efficiency,
        context_bytes: int,
        group_bytes: int,
        prefetched_batches: int,
        rounds_allocations: bool = True,
    ) -> None:
        super().__init__(efficiency)
        self._context_bytes = context_bytes
        self._group_bytes = group_bytes
        self._prefetched_batches = prefetched_batches
        self._rounds_allocations = rounds_allocations

    def lower(self, graph: TaskGraph) -> TaskGraph:
        lowered = lower_layers(graph, CAFFE)
        overhead_bytes = self._context_bytes + self._group_bytes * convolution_groups(lowered)
        overhead_bytes += (self._prefetched_batches - 1) * batch_bytes(lowered)
        if self._rounds_allocations:
            overhead_bytes += lost_to_rounding_bytes(lowered)
        return replace(lowered, overhead_bytes=overhead_bytes)


def convolution_groups(graph: TaskGraph) -> int:
    """Return the number of groups of all convolutions."""
    return sum(
        task.convolution.groups if task.convolution else 1
        for task in graph.tasks
        if task.kind is Kind.CONVOLUTION and task.phase is Phase.FORWARD
    )


def batch_bytes(graph: TaskGraph) -> int:
    """Return the bytes of a batch and its labels."""
    return sum(block.size_bytes for block in graph.blocks if block.role in ARGUMENT_ROLES)
