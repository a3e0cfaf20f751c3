"""The frameworks that are fitted, and remarks on their fits."""

from collections.abc import Callable
from dataclasses import dataclass

from membench.core.errors import MembenchError
from membench.core.task_graph import TaskGraph
from membench.core.units import GIB
from membench.frameworks.caffe import CAFFE
from membench.frameworks.layers import LayerLibrary
from membench.frameworks.mxnet import MXNET
from membench.frameworks.tensorflow import TENSORFLOW
from membench.papers.calibrate.memory import Memory, assumed_memory, fit_memory
from membench.papers.calibrate.rows import BaselineRow


@dataclass(frozen=True)
class Subject:
    """A framework that is fitted.

    Attributes:
        target: the class that its configuration file names.
        library: its layers; `framework` in it is what the paper calls the system.
        memory: from its rows of runtime memory and the graphs in them.
        remarks: about the residuals, one line each.
    """

    target: str
    library: LayerLibrary
    memory: Callable[[list[BaselineRow], dict[str, TaskGraph]], Memory]
    remarks: tuple[str, ...]


SUBJECTS = {
    "caffe": Subject(
        "membench.frameworks.caffe.Caffe",
        CAFFE,
        fit_memory,
        (
            "LeNet and CIFAR10-quick compute for milliseconds; most of what the paper measures there belongs to no task.",
            "Two constants on two networks: the memory's residuals prove little. That workspace grows with the map (and is not",
            "one size per convolution, which fits as well) was chosen knowing that Layrub's rows of deep networks fit 12 GB.",
        ),
    ),
    "mxnet": Subject(
        "membench.frameworks.mxnet.MXNet",
        MXNET,
        lambda rows, graphs: assumed_memory(workspace_limit_bytes=1 * GIB),
        (
            "AlexNet does not fit. It takes 187 images a second, the other ImageNet networks 72 and fewer. A term for each image in",
            "place of step_s (2.1 ms), which this model of time has not, would meet it within 22 % and CIFAR10-quick within 18 %: so",
            "reading images, probably. Only memory can take up its time here: without that row it is 0.159, and VGG-16 and ResNet-50",
            "are met within 5 %. So arithmetic and memory are not rates that could be measured.",
            "ResNet-34 computes nearly as much as ResNet-50, and moves a third of the bytes; here as well it takes much less time.",
            "A rate for each of cuDNN's algorithms, as published for cuDNN 4, was tried and fits no better (ResNet-50 +18 %).",
        ),
    ),
    "tensorflow": Subject(
        "membench.frameworks.tensorflow.TensorFlow",
        TENSORFLOW,
        lambda rows, graphs: assumed_memory(workspace_limit_bytes=4 * GIB),
        (
            "step_s is LeNet's time and nothing else; it is half of ResNet-34's, which comes out too slow with it.",
            "AlexNet takes 267 images a second, VGG-16 20. A term for each image beside step_s would meet it within 4 %.",
            "A rate for each of cuDNN's algorithms, as published for cuDNN 4, was tried and fits worse (VGG-16 -25 %).",
        ),
    ),
}


def find_subject(name: str) -> Subject:
    """Return the subject for ``framework=<name>``.

    Raises:
        MembenchError: the paper has no rows of that framework.
    """
    if name not in SUBJECTS:
        raise MembenchError(
            f"no paper's rows to fit framework {name!r} on; choose one of {', '.join(SUBJECTS)}"
        )
    return SUBJECTS[name]
