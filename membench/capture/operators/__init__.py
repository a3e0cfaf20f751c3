"""Operators that are recorded in another form than torch traces them, a file for each kind."""
