"""Backends: the device on which a schedule runs, real (CPU, CUDA) or simulated."""
