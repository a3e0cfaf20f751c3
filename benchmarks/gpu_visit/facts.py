"""Part b: facts on which other work depends.

Memory outside of the allocator comes first, which needs a card that nothing else uses.
"""

from functools import partial

import torch

from benchmarks.gpu_visit import attention, convolutions, host_calls, memory_stages
from benchmarks.gpu_visit.rows import NotRun, Rows, Values, Visit


def run(visit: Visit, rows: Rows) -> None:
    memory_stages.run(visit, rows)
    rows.measure("capacity", partial(_capacity, visit))
    attention.run(visit, rows)
    convolutions.run(visit, rows)
    host_calls.run(visit, rows)


def _capacity(visit: Visit) -> Values:
    """Return the memory of the card as torch, the driver for a process, and NVML state it."""
    if visit.backend != "cuda":
        raise NotRun("capacities are a driver's")
    import pynvml

    free_bytes, total_bytes = torch.cuda.mem_get_info(visit.device)
    pynvml.nvmlInit()
    by_nvml = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0))
    return {
        "properties_bytes": torch.cuda.get_device_properties(visit.device).total_memory,
        "total_bytes": total_bytes,
        "free_bytes": free_bytes,
        "nvml_total_bytes": by_nvml.total,
        "nvml_used_bytes": by_nvml.used,
        "nvml_free_bytes": by_nvml.free,
    }
