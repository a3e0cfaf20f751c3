"""Parallelism as passes over graphs or schedules: shards, replicas, pipelines, exchanged gradients."""
