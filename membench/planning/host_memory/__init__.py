"""Host memory of a finished schedule: where its buffers lie, and what of it has its home on the disk."""
