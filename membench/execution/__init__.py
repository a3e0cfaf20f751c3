"""Execution: the loop that runs a schedule on a backend, CUDA graphs of it, and measurement of runs."""
