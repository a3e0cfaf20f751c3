"""Profiling: costs measured on the device at hand: operators, issuing, copies and rates."""
