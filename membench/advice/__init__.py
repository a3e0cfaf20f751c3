"""Advice on a step: whether it fits a device, how large its batch may be, and which method is the fastest that fits.

capture -> plain PyTorch's memory and largest batch ┐
        -> each method planned, in processes        ┴-> `Advice`, as data, as a table or as a page

on several GPUs:

`cluster` (arguments) -> `cluster_search`: every division that `meshes` gives, those left out that `rank_bounds` shows not to fit or to be slow
                      -> `cluster_jobs`: captured and predicted in processes -> `ClusterAdvice`, as data, text and `cluster_code`
"""
