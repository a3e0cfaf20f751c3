"""Products of matrices on a GPU: tiles, waves of thread blocks, and the division of the depth.

A thread block computes one tile of the result; blocks run in waves over the multiprocessors, and the last wave takes as
long as the others. A tile's time per step in depth is that of its operations and of loading its two edges; filling and
emptying its pipeline takes some steps more. A library has kernels for several tiles, and divides the depth among blocks
where a result has few tiles (split-K, whose partial sums are added in a further pass); it is taken to choose the
fastest. Published times of single-precision linear layers on a V100 and an A100 follow this with three constants,
within 8 and 10 % (median; NeuSight's data).
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, inf

from membench.core.hardware.device import DeviceProfile
from membench.core.hardware.efficiency import KernelRates

_TILES = ((256, 128), (128, 128), (128, 64), (64, 64), (64, 32), (32, 32))
"""Rows and columns of results per thread block, either way round."""
_DIVISIONS = (1, 2, 4, 8, 16, 32, 64)
"""Of the depth among blocks."""
_DEPTH_STEP = 16
"""The depth is padded to a multiple of it."""
_PARTIAL_BYTES = 4
"""Of a partial sum, in single precision."""


@dataclass(frozen=True, slots=True)
class Product:
    """Products of matrices: `count` times (rows x depth) by (depth x columns)."""

    count: int
    rows: int
    columns: int
    depth: int


@dataclass(frozen=True, slots=True)
class Multiplier:
    """The units that multiply, at their peak rates, and how tiles use them.

    Attributes:
        ops_per_s: rate of all multiprocessors.
        bytes_per_s: bandwidth of device memory.
        multiprocessors: None: any number of tiles fills the device, and edges take no time.
        itemsize: bytes of a factor's element.
        edge_bytes_per_s: rate at which a multiprocessor loads the edges of tiles.
        tile_depth: steps in depth that filling and emptying the pipeline of a tile takes.
    """

    ops_per_s: float
    bytes_per_s: float
    multiprocessors: int | None
    itemsize: int
    edge_bytes_per_s: float
    tile_depth: float


def single_fraction(rates: KernelRates, device: DeviceProfile) -> float:
    """Return the fraction of the rate of single precision that products reach without tensor cores."""
    return min(rates.single_product, rates.multiplying * device.multiprocessor.issues)


@lru_cache(maxsize=100_000)
def product_time_s(product: Product, unit: Multiplier) -> float:
    """Return the seconds of the fastest tile and division, without the bytes of the factors and the result."""
    shapes = {shape for rows, columns in _TILES for shape in ((rows, columns), (columns, rows))}
    return min(_tiled_s(product, unit, *shape) for shape in shapes)


def _tiled_s(product: Product, unit: Multiplier, tile_rows: int, tile_columns: int) -> float:
    tiles = product.count * ceil(product.rows / tile_rows) * ceil(product.columns / tile_columns)
    step_s = 2 * tile_rows * tile_columns / unit.ops_per_s
    if unit.multiprocessors is not None:
        edge_bytes = (tile_rows + tile_columns) * unit.itemsize
        step_s = step_s * unit.multiprocessors + edge_bytes / unit.edge_bytes_per_s
    added_bytes = product.count * product.rows * product.columns * _PARTIAL_BYTES
    best_s = inf
    for parts in _DIVISIONS:
        blocks = tiles * parts
        waves = blocks if unit.multiprocessors is None else ceil(blocks / unit.multiprocessors)
        depth = ceil(product.depth / parts / _DEPTH_STEP) * _DEPTH_STEP + unit.tile_depth
        partial_s = (parts + 1) * added_bytes / unit.bytes_per_s if parts > 1 else 0.0
        best_s = min(best_s, waves * step_s * depth + partial_s)
    return best_s
