"""Convolution: the geometry of a two-dimensional convolution, which its algorithms' cost follows from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Convolution:
    """Sizes in elements, pairs as (height, width); the same for the forward pass and both gradients."""

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


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to run a task on a device.

    Attributes:
        name: as the cost model calls it; what `Task.algorithm` carries once it is chosen.
        workspace_bytes: device memory that it needs beside its inputs and outputs.
        time_s: seconds that it keeps the device busy.
    """

    name: str
    workspace_bytes: int
    time_s: float
