"""The GPU at hand as one of the described devices, by its product name and its memory."""

from dataclasses import replace

from membench.core import configuration
from membench.core.errors import MembenchError
from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.product import products
from membench.core.units import format_bytes
from membench.profiling.nvml import visible_gpus
from membench.sweep.results.provenance import device_facts_from_outside

_TOLERANCE = 0.1
"""By what share a card's memory may differ from its description's: drivers keep some of it."""


def this_device() -> DeviceProfile:
    """Return the description of the GPU at hand, with the memory that its driver states.

    Raises:
        MembenchError: there is no GPU, or none of `conf/device` describes it.
    """
    if not visible_gpus():
        raise MembenchError("device=this is the GPU at hand, and there is none; name a card, such as device=rtx3090")
    facts = device_facts_from_outside("cuda")
    return described_as(facts["device"], facts["device_memory_bytes"])


def described_as(product: str, memory_bytes: int) -> DeviceProfile:
    """Return the description of a card.

    Raises:
        MembenchError: none of `conf/device` describes it.
    """
    names = configuration.names("device")
    for name in sorted(products(product, names)):
        found: DeviceProfile = configuration.load("device", name)
        if abs(memory_bytes / found.memory_bytes - 1) < _TOLERANCE:
            return replace(found, memory_bytes=memory_bytes)
    raise MembenchError(
        f"the GPU at hand, {product} of {format_bytes(memory_bytes)}, is not described in conf/device, which has "
        f"{', '.join(names)}; describe it as docs/device.md explains"
    )
