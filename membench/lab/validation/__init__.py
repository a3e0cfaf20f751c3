"""Published measurements of others, predicted."""
