"""Cells: a configuration built and run, simulated or measured, and the numbers that are read off it."""
