"""Advice on a step: whether it fits a device, how large its batch may be, and which method is the fastest that fits.

device   capture -> plain PyTorch's memory and largest batch, each method planned -> `Advice`, as data, text or a page
cluster  `meshes` and `combinations` (what is tried) -> `rank_bounds` (what is left out: too large, or slow) -> `jobs`
         (captured and predicted) -> `ClusterAdvice`, as data, text and code
pool     the processes in which both plan
"""
