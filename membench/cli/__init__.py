"""The `membench` command: a module for each sub-command, and the modules that they share.

A sub-command's module has ``parse``, which returns its words as typed options, and ``run``, which takes these and
returns the exit code. Both raise a MembenchError, or Hydra's HydraException, for what the user can correct: a word that
is not an option, an invalid value, a model or strategy that its options cannot build, a missing GPU or data set.
"""
