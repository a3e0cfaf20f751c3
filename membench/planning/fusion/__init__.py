"""Fusion: groups of tasks as one task each, as a compiler makes kernels of them."""
