"""Validation: published measurements of others, predicted, and how far off the predictions are."""
