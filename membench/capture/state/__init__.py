"""What the forward pass and the loss read of Python, and whether it is still the same."""
