"""The independent check of a schedule: `validate`, and what it knows of streams and of copies in host memory."""
