"""Training to accuracy under a memory strategy: the loop, its records and their learning curves."""
