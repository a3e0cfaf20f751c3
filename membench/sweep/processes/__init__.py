"""Processes in which cells run, several at once, so that one that dies loses only itself."""
