"""Processes that plan, and the work that they are given."""
