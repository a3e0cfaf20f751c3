"""Caffe's layers.

Facts of BVLC Caffe with cuDNN (the layers' published sources, branch master of 2016 to 2018), none of its code:

- ``BatchNorm`` keeps its normalised output (``x_norm_``) and the standard deviations spread to full size (``temp_``);
  its backward reads both. In place it first saves the incoming gradient to ``x_norm_``'s gradient: a third map.
- ``Scale`` in place keeps a copy of its input (``temp_``) for the gradient of its factors.
- ``ReLU`` in place reads its output; ``Pooling`` keeps the index of each maximum (``max_idx_``, an int each), for Caffe
  does not give max pooling to cuDNN where in-place layers follow; average pooling keeps nothing.
- ``LRN`` runs on cuDNN and keeps nothing; its backward reads input and output. (Caffe's own kernel keeps ``scale_``.)
- ``Dropout`` keeps a 32-bit random number of each element (``rand_vec_``); ``SoftmaxWithLoss`` keeps ``prob_``.
- ``Convolution`` and ``InnerProduct`` keep nothing full-size: workspace and handles are the framework's constants.
- ``Eltwise`` (SUM) and ``Concat`` copy the gradient for each input; they read no data.
"""

from membench.frameworks.layers import (
    LOSS_OPERATORS,
    LayerLibrary,
    LayerType,
    convolution,
    inner_product,
    local_response_norm,
)
from membench.task_graph import Kind

CONVOLUTION = convolution("Convolution")
INNER_PRODUCT = inner_product("InnerProduct")
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
MAX_POOLING = LayerType("Pooling (MAX)", Kind.POOLING, ("max_pool2d_with_indices",), keeps=("index",))
AVERAGE_POOLING = LayerType("Pooling (AVE)", Kind.POOLING, ("avg_pool2d",))
GLOBAL_POOLING = LayerType("Pooling (AVE)", Kind.POOLING, ("mean",))
ADAPTIVE_POOLING = LayerType(
    "Pooling (AVE)", Kind.POOLING, ("_adaptive_avg_pool2d",), vanishes_at_same_size=True
)
LRN = local_response_norm("LRN")
SUM = LayerType("Eltwise (SUM)", Kind.ADD, ("add",))
SUM_IN_PLACE = LayerType("Eltwise (SUM)", Kind.ADD, ("add_",))  # in torch; Caffe's sum is a blob of its own
CONCATENATION = LayerType("Concat", Kind.CONCATENATE, ("cat",))
ZERO_CHANNELS = LayerType("Concat", Kind.CONCATENATE, ("constant_pad_nd",))  # with a constant blob of zeros
SOFTMAX_LOSS = LayerType(
    "SoftmaxWithLoss",
    Kind.LOSS,
    ("_log_softmax",),
    LOSS_OPERATORS,
    keeps=("probabilities",),
)

CAFFE = LayerLibrary(
    framework="Caffe",
    types=(
        CONVOLUTION, INNER_PRODUCT, BATCH_NORM, RELU, DROPOUT, MAX_POOLING, AVERAGE_POOLING, GLOBAL_POOLING,
        ADAPTIVE_POOLING, LRN, SUM, SUM_IN_PLACE, CONCATENATION, ZERO_CHANNELS,
    ),
    loss=SOFTMAX_LOSS,
    sum_name="split",
    weight_states=("momentum",),
    scale=SCALE,
)  # fmt: skip
