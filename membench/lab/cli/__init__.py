"""Commands of the laboratory, each in a file of its name."""
