"""Lowerings: the tasks and the memory of the papers' frameworks for a captured network."""
