"""Figure 7: parts of weights and of layers, AlexNet."""

from matplotlib.figure import Figure

from paper_figs.mmcnn.parts import parts_figure


def draw() -> Figure:
    return parts_figure(7, "AlexNet")
