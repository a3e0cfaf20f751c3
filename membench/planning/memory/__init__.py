"""Memory of a schedule: the bytes that it holds, whose they are, and what PyTorch reserves on a device for them."""
