"""Advice on several GPUs."""
