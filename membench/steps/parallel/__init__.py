"""Ranks of a step on several GPUs: how each kind of parallelism divides it, and those that run."""
