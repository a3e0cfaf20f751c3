"""A multiprocessor, by its compute capability.

Lanes and resident threads are those of NVIDIA's CUDA C++ Programming Guide (throughput of arithmetic instructions,
technical specifications per compute capability); schedulers are those of the architectures' whitepapers.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What a multiprocessor holds and does in a clock.

    Attributes:
        lanes: multiplications with an addition, in single precision.
        threads: the most that are resident.
        issues: instructions that it can issue for each one that occupies all of its lanes.
    """

    lanes: int = 128
    threads: int = 2048
    issues: int = 2


_BY_CAPABILITY = {
    3.5: Multiprocessor(lanes=192, issues=1),
    3.7: Multiprocessor(lanes=192, issues=1),
    6.0: Multiprocessor(lanes=64),
    7.0: Multiprocessor(lanes=64),
    7.5: Multiprocessor(lanes=64, threads=1024),
    8.0: Multiprocessor(lanes=64),
    8.6: Multiprocessor(threads=1536, issues=1),
    8.9: Multiprocessor(threads=1536, issues=1),
    9.0: Multiprocessor(issues=1),
    12.0: Multiprocessor(threads=1536, issues=1),
}
"""Others are as Maxwell's and Pascal's (5.2, 6.1), which issue two instructions at a time, and as Blackwell's (10.0),
whose instructions multiply two numbers. So are those of AMD, of 128 lanes on the scale of a compute unit."""


def multiprocessor_of(compute_capability: float | None) -> Multiprocessor:
    """Return the multiprocessor of NVIDIA's compute capability; None: of a device of another maker."""
    return _BY_CAPABILITY.get(compute_capability or 0.0, Multiprocessor())
