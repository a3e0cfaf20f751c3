"""The `membench` command: a module for each sub-command, and the modules that they share.

A sub-command's module has ``parse``, which returns its words as typed settings, and ``run``, which takes these and returns the
exit code. `parse` raises a MembenchError, or Hydra's HydraException, for a word that is not an option or an invalid value.
"""
