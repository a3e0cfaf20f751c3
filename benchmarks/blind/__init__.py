"""Tables of two papers, predicted before their values were read.

`python -m benchmarks.blind.predict` makes results/blind.
"""
