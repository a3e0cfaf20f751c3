"""Rewrites that keep a graph's results: recomputation, micro-batches, narrow indices, weights' update."""
