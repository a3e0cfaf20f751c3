"""Kernels whose threads wait for each load before they issue the next.

Such a kernel moves what its resident threads load in the time of one load (Little's law), however fast the memory is.
Layer norm on five cards from a P100 to an A100 takes 1,500 to 2,200 clocks from one load of a thread to its next
(NeuSight's data), and on an H200, whose rows decided which operators are here, 900 to 1,300.
"""

from membench.core.graph.call import Call, values_in

CUDNN_LOAD_BYTES = 8.0
"""Of cuDNN's kernels at a time: two elements of single precision, four of half (assumed)."""
_LOADS = {
    "native_batch_norm": 1,
    "native_batch_norm_backward": 2,  # of both arguments at once
    "native_layer_norm": 1,
    "native_layer_norm_backward": 1,
    "max_pool2d_with_indices": 1,
    "avg_pool2d": 1,
}
"""Elements that a thread loads at once, where channels are not last."""
_POOLING_GRADIENTS = {"max_pool2d_with_indices_backward", "avg_pool2d_backward"}


def load_bytes(call: Call) -> float:
    """Return what a thread loads each time that it waits; 0 for kernels that have many loads under way.

    For an element of its input, the gradient of pooling waits for each row of windows that cover it (assumed).
    """
    name = call.operator.split(".")[1]
    if name.startswith("cudnn_batch_norm"):
        return CUDNN_LOAD_BYTES
    if name not in _LOADS and name not in _POOLING_GRADIENTS:
        return 0.0
    itemsize = values_in(call.args)[0].dtype.itemsize
    if name in _LOADS:
        return float(_LOADS[name] * itemsize)
    window, stride = call.args[2], call.args[3] or call.args[2]
    return float(itemsize * stride[0] / max(window[0], stride[0]))
