"""Advice on a step: whether it fits a device, how large its batch may be, and which method is the fastest that fits.

capture -> plain PyTorch's memory and largest batch ┐
        -> each method planned, in processes        ┴-> `Advice`, as data, as a table or as a page
"""
