"""Adapters of other libraries, torch's private names among them, each in one place."""
