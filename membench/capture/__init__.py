"""Capture: a `Workload` is traced on fake tensors and becomes a `TaskGraph`."""
