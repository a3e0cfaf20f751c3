"""Colours of mmCNN's figures, by system or part."""

COLORS = {"conv_number": "#e0a458", "self_number": "#3b82c4", "weights": "#e0a458"}
