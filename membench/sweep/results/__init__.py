"""Records of cells: on disk, their origin, what makes them stale, and how they are shown and tracked."""
