"""The module around the operators: its tensors, hooks, checkpoints, compiled parts and refusals."""
