"""Cells and sweeps: configurations run in processes of their own, and their records on disk."""
