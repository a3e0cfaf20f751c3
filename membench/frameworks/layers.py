"""Layer types: the captured operators that a framework's layer replaces, and the memory that it holds on the device.

Frameworks of layers (Caffe, Torch) differ only in these facts; each is a `LayerLibrary`. `net` reads a graph with one,
`lowering` writes the training step that follows from it.
"""

from dataclasses import dataclass

from membench.core.errors import UnsupportedModel
from membench.core.graph.task_graph import Kind, LayerTasks, Phase

_LOSS_OPERATORS = ("nll_loss_forward", "nll_loss2d_forward", "add", "add_", "mul")
"""Torch's operators of a classifier's loss behind the softmax: of images, of pixels, weighted sums of losses."""


@dataclass(frozen=True)
class WindowPasses:
    """Memory traffic of a pooling kernel that visits each number of each window, in passes over a whole tensor.

    Attributes:
        forward: over the output: in any case, and in addition for each number of a window.
        backward: over the input's gradient: in any case, and for each window that a number lies in.
    """

    forward: tuple[float, float]
    backward: tuple[float, float]

    def forward_bytes(self, output_bytes: int, window: int) -> int:
        """Return the bytes of the forward pass for windows of so many numbers."""
        fixed, each = self.forward
        return round(output_bytes * (fixed + each * window))

    def backward_bytes(self, input_bytes: int, output_bytes: int, window: int) -> int:
        """Return the bytes of the backward pass for windows of so many numbers."""
        fixed, each = self.backward
        return round(fixed * input_bytes + each * window * output_bytes)


@dataclass(frozen=True)
class LayerType:
    """One of a framework's layers. Full-size means as large as the layer's output.

    Attributes:
        name: in the framework.
        marks: ATen operators; one of them identifies a captured layer of this type.
        with_operators: further operators that such a layer may run.
        may_be_in_place: networks use it in place, on its input's memory.
        vanishes_at_same_size: it is left out where its output is as large as its input.
        keeps: full-size blocks that its forward writes and its backward reads.
        keeps_in_place: further such blocks where it is in place.
        keeps_per_channel: such vectors with one number per channel.
        scratch_in_place: full-size blocks that its backward uses internally where it is in place.
        reads_input, reads_output: whether its backward reads the data of these blobs; in place the input is
            overwritten.
        gradient_in_place: it writes its data gradient onto the gradient that it receives also where it is not in place.
            A gradient that others still read is not overwritten.
        forwards_gradient_to: number of its first inputs that get the received gradient unchanged, without a task and
            without memory.
        parameters_first: its backward computes the gradient of its parameters in a task of its own; only that task
            reads data and what is kept, the data gradient reads the parameters (Layrub, Section 3.1). Otherwise one
            task computes both.
        bias_kernels: kernels of their own add its bias to its output, and sum up the bias's gradient.
        forward_passes, parameter_passes, data_passes: number of full-size reads and writes of each task, where that
            does not follow from its blobs (in place).
        window_passes: those of a pooling, where windows that overlap make them more.
    """

    name: str
    kind: Kind
    marks: tuple[str, ...]
    with_operators: tuple[str, ...] = ()
    may_be_in_place: bool = False
    vanishes_at_same_size: bool = False
    keeps: tuple[str, ...] = ()
    keeps_in_place: tuple[str, ...] = ()
    keeps_per_channel: tuple[str, ...] = ()
    scratch_in_place: tuple[str, ...] = ()
    reads_input: bool = False
    reads_output: bool = False
    gradient_in_place: bool = False
    forwards_gradient_to: int = 0
    parameters_first: bool = False
    bias_kernels: bool = False
    forward_passes: int = 0
    parameter_passes: int = 0
    data_passes: int = 0
    window_passes: WindowPasses | None = None

    def matches(self, operators: set[str]) -> bool:
        """Return whether a captured layer that runs these operators is of this type."""
        return bool(operators.intersection(self.marks)) and operators <= {*self.marks, *self.with_operators}


def convolution(name: str) -> LayerType:
    """Return a convolution, the same in every framework here: its weight gradient comes first and reads its input."""
    return LayerType(name, Kind.CONVOLUTION, ("convolution",), reads_input=True, parameters_first=True)


def inner_product(name: str) -> LayerType:
    """Return an inner product: its weight gradient comes first and reads its input."""
    return LayerType(name, Kind.LINEAR, ("addmm", "mm"), ("add",), reads_input=True, parameters_first=True)


def cudnn_batch_norm(name: str, *vectors: str) -> LayerType:
    """Return batch norm as cuDNN computes it: it keeps these vectors, and its backward reads its input."""
    operators = ("native_batch_norm",), ("add_",)
    return LayerType(name, Kind.BATCH_NORM, *operators, keeps_per_channel=vectors, reads_input=True)


def local_response_norm(name: str) -> LayerType:
    """Return local response normalisation over cuDNN; its backward reads input and output."""
    operators = ("avg_pool3d",), ("mul", "constant_pad_nd", "add", "pow", "div")
    return LayerType(name, Kind.NORMALIZATION, *operators, reads_input=True, reads_output=True)


def cudnn_pooling(name: str, *marks: str) -> LayerType:
    """Return a pooling as cuDNN computes it: its backward reads input and output; no index is kept."""
    return LayerType(name, Kind.POOLING, marks, reads_input=True, reads_output=True)


def softmax_loss(name: str, kept: str) -> LayerType:
    """Return a classifier's loss, which keeps one block as large as its logits."""
    return LayerType(name, Kind.LOSS, ("_log_softmax",), _LOSS_OPERATORS, keeps=(kept,))


@dataclass(frozen=True)
class LayerLibrary:
    """The layers of a framework, and its memory for each weight.

    Attributes:
        framework: its name in messages.
        types: types of layers in the forward pass, in the order in which they are tried.
        loss: the layer of every classifier's loss.
        sum_name: the network's name for the sum of the gradients of a blob with several readers.
        weight_states: blocks as large as a trained weight, in addition to its gradient, that stay for the whole run.
        scale: the layer that applies batch norm's factors; None where batch norm does so itself.
        bias: the layer that adds a bias; None where the layer with the weight does so itself.
        groups: the layers that copy the groups of a convolution's input apart, and of its output together; None where
            convolutions have groups.
        keeps_weight_gradients: they stay for the whole run; otherwise each is applied and freed at once.
        sums_in_place: that sum takes the first gradient's memory.
        sums_pairwise: that sum adds one gradient after another to its output, instead of all in one kernel.
    """

    framework: str
    types: tuple[LayerType, ...]
    loss: LayerType
    sum_name: str
    weight_states: tuple[str, ...] = ()
    scale: LayerType | None = None
    bias: LayerType | None = None
    groups: tuple[LayerType, LayerType] | None = None
    keeps_weight_gradients: bool = True
    sums_in_place: bool = False
    sums_pairwise: bool = False

    def type_of(self, layer: LayerTasks, name: str) -> LayerType:
        """Return the type of a captured layer.

        Raises:
            UnsupportedModel: the framework has no such layer.
        """
        operators = {task.call.operator.split(".")[1] for task in layer.tasks if task.call is not None}
        candidates = (self.loss,) if layer.phase is Phase.LOSS else self.types
        for candidate in candidates:
            if candidate.matches(operators):
                return candidate
        cause = f"{self.framework} has no layer that computes {', '.join(sorted(operators)) or 'it'}"
        raise UnsupportedModel(name, cause, "replace it, or choose framework=pytorch")
