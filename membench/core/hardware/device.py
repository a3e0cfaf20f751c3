"""DeviceProfile: the capacities and rates of a device from which a simulator computes."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from membench.core import configuration
from membench.core.checks import COUNT, NOT_NEGATIVE, POSITIVE, SWITCH, check, choice
from membench.core.errors import MembenchError
from membench.core.graph.precision import Precision
from membench.core.hardware.allocator import DEFAULT, AllocatorSettings
from membench.core.hardware.multiprocessor import Multiprocessor, multiprocessor_of
from membench.core.hardware.product import device_named

TENSOR_CORE_PRECISIONS = (Precision.TF32, Precision.BF16, Precision.FP16)
PRODUCT_PRECISIONS = (*TENSOR_CORE_PRECISIONS, Precision.FP8, Precision.INT8)
_LONGEST_FILE_NAME = 200
"""In characters; file systems have room for 255, endings included."""


@dataclass(frozen=True)
class Power:
    """A board's power draw in watts.

    Attributes:
        awake_w: with a program's context, but idle.
        compute_w: while a kernel runs that fills the device, `awake_w` included.
        copy_w: added by a copy over the link, in either direction.

    Raises:
        MembenchError: one of them is negative.
    """

    awake_w: float
    compute_w: float
    copy_w: float

    def __post_init__(self) -> None:
        check(NOT_NEGATIVE, awake_w=self.awake_w, compute_w=self.compute_w, copy_w=self.copy_w)


@dataclass(frozen=True)
class DeviceProfile:
    """Capacities and rates of one device, from its datasheet or a published measurement.

    Attributes:
        memory_bytes: device memory available to all programs, as the driver states it: the total of PyTorch's messages,
            less than the number on the label.
        arithmetic_ops_per_s: peak of single-precision floating-point operations.
        memory_bytes_per_s: peak bandwidth of device memory.
        host_to_device_bytes_per_s: reached by a pinned copy.
        device_to_host_bytes_per_s: reached by a pinned copy.
        copy_latency_s: from the issue of a copy to its first byte.
        full_duplex: copies in both directions overlap.
        power: None if it is not published.
        multiprocessors: NVIDIA's SMs or AMD's compute units, over which a kernel's thread blocks are spread; None if
            not known.
        compute_capability: NVIDIA's number of the architecture, as in 9.0 of Hopper; None for a device that is not
            NVIDIA's or not known.
        l2_bytes: cache that all multiprocessors share; None if not known.
        context_bytes: memory that a process holds in addition to PyTorch's allocator: the CUDA context with the kernels
            of the libraries, as nvidia-smi shows it; None if not published.
        also_bytes: memory that the process holds besides the step, in PyTorch's allocator or outside of it.
        idle_bytes: memory in use while no process runs, which nvidia-smi counts.
        link_generation: PCI Express's generation, as in 4 for 4.0; None if not known.
        link_lanes: number of PCI Express lanes; None if not known.
        peer_link: what joins the board to others in its host, with the number of links, as in ``"NVLink 4 x18"``, or
            ``"PCI Express"``; None if not known.
        pageable_host_to_device_bytes_per_s: reached by a copy from memory that is not pinned; None if not published.
        pageable_device_to_host_bytes_per_s: reached by a copy to memory that is not pinned; None if not published.
        precision_ops_per_s: peak of dense products of matrices by tensor cores, for tf32, bf16, fp16 and fp8, with
            accumulation in single precision as in PyTorch, and for int8. Without an entry, such a product has the rate
            of single precision, except fp8, which other devices do not multiply.
        sustained_clock: clock at which large products run within the board's power limit, over the boost clock, for
            which the rates hold.
        allocator: PyTorch's allocator in the process that has the device.
        benchmarks_convolutions: whether that process tries algorithms of each new convolution
            (``torch.backends.cudnn.benchmark``).

    Raises:
        MembenchError: a capacity, rate, count or capability is not positive, the latency is negative, or there is a
            rate for another precision.
    """

    name: str
    memory_bytes: int
    arithmetic_ops_per_s: float
    memory_bytes_per_s: float
    host_to_device_bytes_per_s: float
    device_to_host_bytes_per_s: float
    copy_latency_s: float
    full_duplex: bool
    power: Power | None = None
    multiprocessors: int | None = None
    compute_capability: float | None = None
    l2_bytes: int | None = None
    context_bytes: int | None = None
    also_bytes: int = 0
    idle_bytes: int = 0
    link_generation: int | None = None
    link_lanes: int | None = None
    peer_link: str | None = None
    pageable_host_to_device_bytes_per_s: float | None = None
    pageable_device_to_host_bytes_per_s: float | None = None
    precision_ops_per_s: Mapping[str, float] = field(default_factory=dict)
    sustained_clock: float = 1.0
    allocator: AllocatorSettings = DEFAULT
    benchmarks_convolutions: bool = False

    def __post_init__(self) -> None:
        check(
            POSITIVE,
            memory_bytes=self.memory_bytes,
            arithmetic_ops_per_s=self.arithmetic_ops_per_s,
            memory_bytes_per_s=self.memory_bytes_per_s,
            host_to_device_bytes_per_s=self.host_to_device_bytes_per_s,
            device_to_host_bytes_per_s=self.device_to_host_bytes_per_s,
        )
        check(NOT_NEGATIVE, copy_latency_s=self.copy_latency_s, also_bytes=self.also_bytes, idle_bytes=self.idle_bytes)
        check(POSITIVE, sustained_clock=self.sustained_clock)
        check(SWITCH, full_duplex=self.full_duplex, benchmarks_convolutions=self.benchmarks_convolutions)
        counts = ("multiprocessors", "l2_bytes", "context_bytes", "link_generation", "link_lanes")
        numbers = ("compute_capability", "pageable_host_to_device_bytes_per_s", "pageable_device_to_host_bytes_per_s")
        for requirement, names in ((COUNT, counts), (POSITIVE, numbers)):
            check(requirement, **{name: value for name in names if (value := getattr(self, name)) is not None})
        for precision in self.precision_ops_per_s:
            choice(PRODUCT_PRECISIONS, "a precision of precision_ops_per_s", precision)
        check(POSITIVE, **{f"precision_ops_per_s.{name}": rate for name, rate in self.precision_ops_per_s.items()})

    def product_ops_per_s(self, precision: Precision) -> float:
        """Return the peak rate of products of matrices whose factors have this format.

        Raises:
            MembenchError: the device has no such products.
        """
        if precision is Precision.FP8 and precision not in self.precision_ops_per_s:
            raise MembenchError(
                f"{self.name} does not multiply in fp8; choose a device that does, such as h100 or rtx4090, or train "
                f"in bf16"
            )
        return self.precision_ops_per_s.get(precision, self.arithmetic_ops_per_s)

    @property
    def multiprocessor(self) -> Multiprocessor:
        """What one of the multiprocessors does."""
        return multiprocessor_of(self.compute_capability)

    @property
    def clock_hz(self) -> float:
        """The boost clock, for which `arithmetic_ops_per_s` holds; infinite if the multiprocessors are not known."""
        if self.multiprocessors is None:
            return inf
        return self.arithmetic_ops_per_s / (2 * self.multiprocessor.lanes * self.multiprocessors)

    @property
    def free_bytes(self) -> int:
        """What the rest of the process leaves of the memory to the step."""
        return max(0, self.memory_bytes - (self.context_bytes or 0) - self.also_bytes)


def as_device(device: str | DeviceProfile | None) -> DeviceProfile:
    """Return a simulated device that is given as a profile, by its name in ``conf/device`` or by its product name.

    Raises:
        MembenchError: there is no such device, or it is None.
    """
    if isinstance(device, DeviceProfile):
        return device
    if device is None:
        known = ", ".join(configuration.names("device"))
        raise MembenchError(f"a simulation needs a device; choose one of {known}")
    profile: DeviceProfile = configuration.load("device", device_named(device))
    return profile


def file_name(name: str) -> str:
    """Return a name for files and folders: ``"NVIDIA H200"`` becomes ``"nvidia_h200"``.

    A name of which that would leave little, because it is long or not ASCII, is told from others by a hash.
    """
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    if plain and name.isascii() and len(plain) <= _LONGEST_FILE_NAME:
        return plain
    return f"{plain[:_LONGEST_FILE_NAME]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}".strip("_")
