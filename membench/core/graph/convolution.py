"""Convolution: the geometry of a two-dimensional convolution, which determines the cost of its algorithms."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Convolution:
    """Geometry of a convolution and of both its gradients: sizes in elements, pairs as (height, width)."""

    images: int
    input_channels: int
    output_channels: int
    input_size: tuple[int, int]
    output_size: tuple[int, int]
    kernel_size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    itemsize: int

    @property
    def is_depthwise(self) -> bool:
        """Whether each input channel is a group of its own: PyTorch runs its own kernels, unless channels are last."""
        return 1 < self.groups == self.input_channels


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to run a task on a device.

    Attributes:
        name: the cost model's name, which `Task.algorithm` holds once the algorithm is chosen.
        workspace_bytes: device memory that it needs in addition to its inputs and outputs.
        time_s: seconds for which it keeps the device busy.
    """

    name: str
    workspace_bytes: int
    time_s: float
