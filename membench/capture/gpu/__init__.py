"""Tracing as a GPU would run it."""
