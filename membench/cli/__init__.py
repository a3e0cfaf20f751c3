"""The `membench` command: a module for each sub-command, and the modules that they share."""
