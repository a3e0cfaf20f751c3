"""TensorFlow over cuDNN, as of 2016: the releases that run on Layrub's CUDA 7.5 and cuDNN 4.

Facts of its published sources (tensorflow/tensorflow, read at a state of release 1.0), none of its code. A tensor is
freed when the last operator that reads it is done; no operator of that time writes onto its input.

- ``Conv2D`` and ``MatMul`` have no bias; ``BiasAdd`` is an operator with an output of its own. It passes its gradient
  on unchanged (``nn_grad.py``).
- ``Conv2D`` has no groups either (issue 3332 of July 2016; they came with pull request 25818, for release 1.14). Public
  AlexNets split the input, convolve each part and concatenate the outputs. The convolutions are one task here.
- ``Relu`` has an output of its own, and its gradient reads that (``numeric_op.h``, ``nn_grad.py``).
- ``FusedBatchNorm`` keeps the batch's mean and deviation, and its gradient reads its input. That Layrub's networks used
  it, and not a batch norm composed of a dozen operators, is assumed.
- ``MaxPool``'s gradient reads input and output, ``AvgPool``'s neither, because it needs only the shape; ``LRN``'s reads
  both.
- Dropout multiplies with a float per element, 0 or 1, which its gradient reads (``nn_ops.py``). The operators that
  draw it are one task here.
- ``SparseSoftmaxCrossEntropyWithLogits`` keeps the gradient of the logits, which it computes in the forward pass.
- ``Add`` passes its gradient on to both inputs: without broadcasting its sums reduce nothing, and share their input's
  memory (``math_grad.py``, ``reduction_ops_common.h``). ``AddN`` sums up several gradients in a tensor of its own.
- A weight has a slot for the momentum. Its gradient is a tensor like others: applied at once, then freed.
- Scratch memory of a convolution comes out of the same allocator, for that one operator.

Layout: channels lie first, as cuDNN has them. (By default they lie last, and each convolution transposes.)
"""

from dataclasses import replace
from typing import ClassVar

from membench.core.graph.task_graph import Kind, TaskGraph
from membench.core.hardware.efficiency import Efficiency
from membench.frameworks import layers
from membench.frameworks.autotuner import Autotuner
from membench.frameworks.base import Framework
from membench.frameworks.layers import LayerLibrary, LayerType
from membench.frameworks.lowering import lower_layers

CONV2D = layers.convolution("Conv2D")
MATMUL = layers.inner_product("MatMul")
BIAS_ADD = LayerType(
    "BiasAdd",
    Kind.OTHER,
    (),  # part of torch's convolutions and inner products
    forwards_gradient_to=1,
    parameters_first=True,
)
FUSED_BATCH_NORM = layers.cudnn_batch_norm("FusedBatchNorm", "mean", "deviation")
RELU = LayerType("Relu", Kind.RELU, ("relu", "relu_"), reads_output=True)
DROPOUT = LayerType(
    "Mul (dropout)",
    Kind.DROPOUT,
    ("native_dropout",),
    ("copy_",),
    keeps=("mask",),
    # drawn 1, keep probability added 2, floor 2, input scaled 2, product 3
    forward_passes=10,
    data_passes=5,  # product 3, scaled 2
)
MAX_POOL = layers.cudnn_pooling("MaxPool", "max_pool2d_with_indices")
AVERAGE_POOL = LayerType("AvgPool", Kind.POOLING, ("avg_pool2d", "mean"))
ADAPTIVE_POOL = LayerType("AvgPool", Kind.POOLING, ("_adaptive_avg_pool2d",), vanishes_at_same_size=True)
LRN = layers.local_response_norm("LRN")
ADD = LayerType("Add", Kind.ADD, ("add", "add_"), forwards_gradient_to=2)
CONCATENATION = LayerType("Concat", Kind.CONCATENATE, ("cat",))
SPLIT = LayerType("Split", Kind.CONCATENATE, ())  # part of torch's convolutions
PAD = LayerType("Pad", Kind.CONCATENATE, ("constant_pad_nd",))
CROSS_ENTROPY = layers.softmax_loss("SparseSoftmaxCrossEntropyWithLogits", "backprop")

TENSORFLOW = LayerLibrary(
    framework="TensorFlow",
    types=(
        CONV2D, MATMUL, FUSED_BATCH_NORM, RELU, DROPOUT, MAX_POOL, AVERAGE_POOL, ADAPTIVE_POOL, LRN, ADD, CONCATENATION,
        PAD,
    ),
    loss=CROSS_ENTROPY,
    sum_name="AddN",
    weight_states=("momentum",),
    bias=BIAS_ADD,
    groups=(SPLIT, CONCATENATION),
    keeps_weight_gradients=False,
)  # fmt: skip


class TensorFlow(Framework):
    """TensorFlow over cuDNN.

    Args:
        efficiency: efficiency of its kernels.
        context_bytes: held by the process on the device for any network.
        autotuner: chooses the algorithms of convolutions; each has its workspace while it runs.
    """

    name: ClassVar[str] = "tensorflow"

    def __init__(self, efficiency: Efficiency, context_bytes: int, autotuner: Autotuner) -> None:
        super().__init__(efficiency)
        self._context_bytes = context_bytes
        self._autotuner = autotuner

    def lower(self, graph: TaskGraph) -> TaskGraph:
        lowered = lower_layers(graph, TENSORFLOW)
        tasks = (replace(t, workspace_bytes=self._autotuner.workspace_bytes(t)) for t in lowered.tasks)
        return replace(lowered, tasks=tuple(tasks), overhead_bytes=self._context_bytes)
