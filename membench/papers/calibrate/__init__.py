"""Fits of a framework's constants to its own rows of the papers' tables."""
