"""The laboratory: papers and published measurements, reproduced and judged; the library imports nothing of it."""
