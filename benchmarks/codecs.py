"""Rates of encoding and decoding activations, compared with the CSR of scipy.sparse and of torch in one run.

On a GPU, torch's is cuSPARSE's. A ratio above 1 means that ours is faster; the times are medians of several, measured
in turns so that a busy machine slows all alike. COO, ELL and DIA, of which only the sizes count, are not tuned.
"""

import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import scipy.sparse
import torch
from torch import Tensor

from experiments.epmc.sizes import COO, DIA, ELL
from membench.codecs.mask import BitMask
from membench.codecs.rows import csr, vp_encoding
from membench.core.graph.codec import Codec
from membench.execution.measurement import synchronize

ROWS, COLUMNS = 16_000, 256
DENSITIES = (0.1, 0.5, 0.9)
REPETITIONS = 11

OURS: dict[str, Codec] = {
    "CSR": csr(),
    "VPEncoding FP16": vp_encoding(),
    "VPEncoding FP10": vp_encoding(values="fp10"),
    "VPEncoding FP8": vp_encoding(values="fp8"),
    "COO": COO(),
    "ELL": ELL(),
    "DIA": DIA(),
    "bit mask": BitMask(),
}


def median_times_s(runs: dict[str, Callable[[], object]], device: torch.device) -> dict[str, float]:
    """Return the median time of each, without its first run."""
    times_s: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(REPETITIONS + 1):
        for name, run in runs.items():
            synchronize(device)
            start_s = time.perf_counter()
            run()
            synchronize(device)
            times_s[name].append(time.perf_counter() - start_s)
    return {name: statistics.median(times[1:]) for name, times in times_s.items()}


def measure(matrix: Tensor) -> tuple[dict[str, float], dict[str, float]]:
    """Return the seconds of each to encode a matrix, and to decode it."""
    host = matrix.cpu().numpy()
    theirs, on_host = matrix.to_sparse_csr(), scipy.sparse.csr_matrix(host)
    encode: dict[str, Callable[[], object]] = {name: partial(codec.encode, matrix) for name, codec in OURS.items()}
    encode |= {
        "torch": matrix.to_sparse_csr,
        "scipy": partial(scipy.sparse.csr_matrix, host),
        "scipy's DIA": partial(scipy.sparse.dia_matrix, host),
    }
    decode: dict[str, Callable[[], object]] = {
        name: partial(codec.decode, codec.encode(matrix)) for name, codec in OURS.items()
    }
    decode |= {"torch": theirs.to_dense, "scipy": on_host.toarray, "scipy's DIA": scipy.sparse.dia_matrix(host).toarray}
    return median_times_s(encode, matrix.device), median_times_s(decode, matrix.device)


def ratios() -> dict[str, float]:
    """Return scipy's CSR time over each codec's, the geometric mean over densities."""
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    warnings.filterwarnings("ignore", category=scipy.sparse.SparseEfficiencyWarning)
    torch.set_num_threads(1)  # as scipy
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{ROWS} x {COLUMNS} float32 on {device}: MB/s of the dense map (times as fast as torch's CSR, as scipy's)")
    found: defaultdict[str, list[float]] = defaultdict(list)
    for density in DENSITIES:
        matrix = torch.randn(ROWS, COLUMNS, device=device)
        matrix[torch.rand(ROWS, COLUMNS, device=device) >= density] = 0.0
        encode_s, decode_s = measure(matrix)
        for name in encode_s:
            columns = (_column("encode", matrix, encode_s, name), _column("decode", matrix, decode_s, name))
            print(f"  density {density:.1f}  {name:16s}", *columns, sep="  ")
        for name in OURS:
            for verb, times_s in (("encode", encode_s), ("decode", decode_s)):
                found[f"{verb}, {name}: as fast as scipy's CSR"].append(times_s["scipy"] / times_s[name])
    return {name: statistics.geometric_mean(values) for name, values in found.items()}


def _column(verb: str, matrix: Tensor, times_s: dict[str, float], name: str) -> str:
    rate = matrix.nbytes / times_s[name] / 1e6
    ratios = [times_s[other] / times_s[name] for other in ("torch", "scipy")]
    return f"{verb} {rate:6.0f} MB/s ({ratios[0]:5.2f}x, {ratios[1]:5.2f}x)"


if __name__ == "__main__":
    ratios()
