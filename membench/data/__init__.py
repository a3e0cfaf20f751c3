"""Data sets, one file each, in the layout in which they are distributed; only Fashion-MNIST is fetched if missing."""
