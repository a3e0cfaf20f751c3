"""The convolution algorithms of cuDNN: conditions, operations and workspace.

Workspaces are for a whole batch. The cuDNN paper writes the matrix of patches so, and for the FFT a log in Theano's
pull request 6348 agrees: 9,445,376 bytes for 12 images of 4 x 128 x 128 and 5 filters of 64 x 64, where the
half-spectra below are 8,519,680 (37,502,976 and 33,816,576 at 256 x 256); their padding is not published. That tiles
and Winograd's transforms are kept for a whole batch as well is assumed.

A convolution in groups runs one group after another with one workspace, as in frameworks before cuDNN 7.

Restrictions are those of the cuDNN 5.1 user guide (``cudnnConvolutionForward``) where no other source is named. cuDNN 4
has the same algorithms except Winograd's; a framework's efficiency lists its algorithms.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, log2

from membench.core.graph.convolution import Convolution
from membench.core.graph.task_graph import GradientOf

INDEX_BYTES = 4
COMPLEX_OPERATIONS = 8
"""Of a complex multiplication and addition: four products and four sums."""
FFT_LIMIT = 256
"""Padded images up to this height and width; one transform covers such an image."""
FFT_TILE = 32
WINOGRAD_OUTPUT, WINOGRAD_TILE = 4, 6
"""F(4x4, 3x3): an output tile of 4 x 4 from an input tile of 6 x 6 (Lavin and Gray 2015, Section 4.3)."""
WINOGRAD_DATA_OPERATIONS, WINOGRAD_FILTER_OPERATIONS, WINOGRAD_INVERSE_OPERATIONS = 156, 72, 90
"""Of one tile's transforms (Lavin and Gray 2015, Section 4.3)."""


class ConvolutionAlgorithm(StrEnum):
    """cuDNN's names; in the backward pass 0 is implicit GEMM, and 1 (weights: 3) the precomputed one."""

    IMPLICIT_GEMM = "implicit_gemm"
    IMPLICIT_PRECOMP_GEMM = "implicit_precomp_gemm"
    GEMM = "gemm"
    FFT = "fft"
    FFT_TILING = "fft_tiling"
    WINOGRAD = "winograd"


@dataclass(frozen=True, slots=True)
class AlgorithmWork:
    """Operations and memory of an algorithm for one convolution or one of its gradients.

    Attributes:
        operations: floating-point operations.
        workspace_bytes: device memory in addition to inputs and outputs.
        staged_bytes: traffic of the workspace; each intermediate is written once and read once.
    """

    operations: float
    workspace_bytes: int
    staged_bytes: int


_Formula = Callable[[Convolution, GradientOf | None], tuple[float, int] | None]
"""Operations and workspace in bytes of one group, or None where the algorithm does not apply."""


def algorithm_work(
    algorithm: ConvolutionAlgorithm, convolution: Convolution, gradient_of: GradientOf | None
) -> AlgorithmWork | None:
    """Return the work of an algorithm, or None where it does not apply.

    Args:
        gradient_of: None: the forward pass.
    """
    groups = convolution.groups
    one_group = replace(
        convolution,
        input_channels=convolution.input_channels // groups,
        output_channels=convolution.output_channels // groups,
        groups=1,
    )
    result = _FORMULAS[algorithm](one_group, gradient_of)
    if result is None:
        return None
    operations, workspace_bytes = result
    return AlgorithmWork(groups * operations, workspace_bytes, 2 * groups * workspace_bytes)


def _implicit_gemm(c: Convolution, gradient_of: GradientOf | None) -> tuple[float, int]:
    """The matrix of image patches is formed in on-chip memory, tile by tile (Chetlur et al. 2014, Section 3)."""
    return _direct_operations(c), 0


def _implicit_precomp_gemm(c: Convolution, gradient_of: GradientOf | None) -> tuple[float, int]:
    """As above, with one offset computed beforehand for each row of that matrix.

    The guide mentions indices without details; the rows are assumed, because their offsets serve every column.
    """
    channels = c.output_channels if gradient_of is GradientOf.DATA else c.input_channels
    return _direct_operations(c), INDEX_BYTES * channels * _area(c.kernel_size)


def _gemm(c: Convolution, gradient_of: GradientOf | None) -> tuple[float, int] | None:
    """The matrix lies in memory: CRS x NPQ (Chetlur et al. 2014, Section 3). Only the forward pass has it."""
    if gradient_of is not None:
        return None
    matrix = c.input_channels * _area(c.kernel_size) * c.images * _area(c.output_size)
    return _direct_operations(c), c.itemsize * matrix


def _fft(c: Convolution, gradient_of: GradientOf | None) -> tuple[float, int] | None:
    """One transform for a whole padded image, its sides rounded up to powers of two.

    The circular convolution of that length is right for all three passes: the part that wraps around is cut off. Powers
    of two are assumed; the guide's limit of 256 is one. A filter of 1 x 1 is refused (Theano, for cuDNN 3 and 4).
    """
    padded = [size + 2 * padding for size, padding in zip(c.input_size, c.padding, strict=True)]
    if not _has_spectrum(c) or max(padded) > FFT_LIMIT:
        return None
    height, width = (2 ** ceil(log2(side)) for side in padded)
    return _spectral(c, height, width, tiles=1)


def _fft_tiling(c: Convolution, gradient_of: GradientOf | None) -> tuple[float, int] | None:
    """Transforms of 32 x 32 tiles, which overlap by the kernel's size less one in the tensor that is read.

    Filters have one tile each. Not for the weight gradient before cuDNN 6.
    """
    if not _has_spectrum(c) or max(c.kernel_size) > FFT_TILE or gradient_of is GradientOf.WEIGHT:
        return None
    produced = c.input_size if gradient_of is GradientOf.DATA else c.output_size
    tiles = _tiles(produced, [FFT_TILE - kernel + 1 for kernel in c.kernel_size])
    return _spectral(c, FFT_TILE, FFT_TILE, tiles=tiles)


def _winograd(c: Convolution, gradient_of: GradientOf | None) -> tuple[float, int] | None:
    """Non-fused: transformed tiles of images, filters and outputs lie in memory between three kernels.

    All three passes multiply tiles of 6 x 6 for tensors cut into tiles of 4 x 4. That cuDNN's tiles are these is
    assumed.
    """
    if c.kernel_size != (3, 3) or not _has_unit_steps(c):
        return None
    cut = c.input_size if gradient_of is GradientOf.DATA else c.output_size
    tiles = _tiles(cut, [WINOGRAD_OUTPUT, WINOGRAD_OUTPUT])
    images, filters, outputs = _tile_counts(c, tiles)
    points = WINOGRAD_TILE**2
    products = 2 * points * tiles * c.images * c.input_channels * c.output_channels
    transforms = (
        WINOGRAD_DATA_OPERATIONS * images + WINOGRAD_FILTER_OPERATIONS * filters + WINOGRAD_INVERSE_OPERATIONS * outputs
    )
    return products + transforms, c.itemsize * points * (images + filters + outputs)


_FORMULAS: dict[ConvolutionAlgorithm, _Formula] = {
    ConvolutionAlgorithm.IMPLICIT_GEMM: _implicit_gemm,
    ConvolutionAlgorithm.IMPLICIT_PRECOMP_GEMM: _implicit_precomp_gemm,
    ConvolutionAlgorithm.GEMM: _gemm,
    ConvolutionAlgorithm.FFT: _fft,
    ConvolutionAlgorithm.FFT_TILING: _fft_tiling,
    ConvolutionAlgorithm.WINOGRAD: _winograd,
}


def _direct_operations(c: Convolution) -> int:
    filters = c.input_channels * c.output_channels * _area(c.kernel_size)
    return 2 * c.images * filters * _area(c.output_size)


def _spectral(c: Convolution, height: int, width: int, *, tiles: int) -> tuple[float, int]:
    """Return operations and workspace of transforms, products and back-transforms.

    A real tensor's spectrum is half redundant: height x (width / 2 + 1) complex numbers. Its transform takes 2.5 n
    log2(n) operations for n = height x width. Images, filters and outputs have their spectra in memory, because the
    products run over channels, one matrix product for each frequency (Mathieu et al. 2013; Vasilache et al. 2014).
    """
    frequencies = height * (width // 2 + 1)
    points = height * width
    spectra = sum(_tile_counts(c, tiles))
    products = COMPLEX_OPERATIONS * tiles * frequencies * c.images * c.input_channels * c.output_channels
    return products + 2.5 * points * log2(points) * spectra, 2 * c.itemsize * frequencies * spectra


def _tile_counts(c: Convolution, tiles: int) -> tuple[int, int, int]:
    """Return the numbers of tiles to be transformed: of images, filters and outputs."""
    filters = c.input_channels * c.output_channels
    return c.images * c.input_channels * tiles, filters, c.images * c.output_channels * tiles


def _has_spectrum(c: Convolution) -> bool:
    fits = all(padding < kernel for padding, kernel in zip(c.padding, c.kernel_size, strict=True))
    return fits and c.kernel_size != (1, 1) and _has_unit_steps(c)


def _has_unit_steps(c: Convolution) -> bool:
    return c.stride == (1, 1) and c.dilation == (1, 1)


def _tiles(size: tuple[int, int], steps: list[int]) -> int:
    height, width = (ceil(side / step) for side, step in zip(size, steps, strict=True))
    return height * width


def _area(size: tuple[int, int]) -> int:
    return size[0] * size[1]
