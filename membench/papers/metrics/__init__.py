"""Numbers that one paper's tables and figures need, a module for each paper; its ``paper.yaml`` names the functions."""
