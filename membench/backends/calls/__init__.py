"""How a recorded call becomes a function that runs it."""
