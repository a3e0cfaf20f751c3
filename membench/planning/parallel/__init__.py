"""Parallelism as passes over a captured graph or a finished schedule: shards, replicas, pipelines, exchanged gradients."""
