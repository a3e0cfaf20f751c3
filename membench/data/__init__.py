"""Data sets, one file each, in the layout in which they are distributed; nothing is downloaded."""
