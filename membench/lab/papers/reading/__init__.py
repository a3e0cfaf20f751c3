"""A paper's files, and the cells that they name."""
