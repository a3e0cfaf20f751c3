"""Training to accuracy."""
