"""Rewrites of a graph that keep its results: recomputation, micro-batches, narrow indices, the update of the weights."""
