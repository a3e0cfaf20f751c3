"""Figure 8: parts of weights and of layers, VGG-S."""

from matplotlib.figure import Figure

from paper_figs.mmcnn.parts import parts_figure


def draw() -> Figure:
    return parts_figure(8, "VGG-S")
