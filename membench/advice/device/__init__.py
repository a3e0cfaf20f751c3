"""Advice on one device."""
