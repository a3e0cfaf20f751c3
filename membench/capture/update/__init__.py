"""Optimizers' updates as tasks."""
