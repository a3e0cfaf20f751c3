"""The `membench` command: a module for each sub-command, and what they share."""
