"""The scheme that is found is the one that a search through all of them finds."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from membench.strategies.modnn.eviction import Neighbours, Scheme, best_scheme

PIECES = st.tuples(st.sampled_from(["free", "stays", "to copy", "copied"]), st.integers(1, 4), st.integers(0, 6))


@settings(deadline=None)
@given(st.lists(PIECES, max_size=12), st.integers(1, 12), st.integers(0, 8), st.integers(0, 8))
def test_the_best_scheme_is_found(
    pieces: list[tuple[str, int, int]], needed_bytes: int, compute_s: int, copy_free_s: int
) -> None:
    uses = np.array([use for use, _, _ in pieces], dtype=object)
    size_bytes, at_s = (np.array([item[n] for item in pieces], dtype=np.float64) for n in (1, 2))
    leaves = (uses == "to copy") | (uses == "copied")
    neighbours = Neighbours(
        size_bytes=size_bytes,
        stays=uses == "stays",
        evicted_bytes=np.where(leaves, size_bytes, 0).astype(np.int64),
        is_copied=uses == "to copy",
        ready_s=at_s,
        offload_time_s=size_bytes,
        on_host_s=np.where(uses == "copied", at_s, 0.0),
    )
    found = best_scheme(neighbours, needed_bytes, compute_s=compute_s, copy_free_s=copy_free_s)
    assert found == searched(pieces, needed_bytes, compute_s, copy_free_s)


def searched(pieces: list[tuple[str, int, int]], needed_bytes: int, compute_s: int, copy_free_s: int) -> Scheme | None:
    """Look at every range, the first to begin first."""
    best: tuple[tuple[float, int], Scheme] | None = None
    for first in range(len(pieces)):
        found_bytes, evicted_bytes, done_s, copy_s = 0, 0, 0.0, float(copy_free_s)
        for position in range(first, len(pieces)):
            use, size_bytes, at_s = pieces[position]
            if use == "stays":
                break
            found_bytes += size_bytes
            evicted_bytes += size_bytes if use in ("to copy", "copied") else 0
            if use == "to copy":
                copy_s = max(copy_s, at_s) + size_bytes
                done_s = max(done_s, copy_s)
            elif use == "copied":
                done_s = max(done_s, at_s)
            if found_bytes >= needed_bytes:
                rank = max(done_s, float(compute_s)), evicted_bytes
                if best is None or rank < best[0]:
                    best = rank, Scheme(first, position + 1, done_s, copy_s)
                break
    return best and best[1]
