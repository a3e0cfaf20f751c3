"""A step's measurement as a picture: that of its timeline."""

from matplotlib.figure import Figure

from membench.pictures import picture
from membench.pictures.observed_step import timeline
from membench.steps.measurement import StepMeasurement


def draw(measurement: StepMeasurement) -> Figure:
    """Return the picture of the memory and the streams of a measured or simulated step."""
    return picture.draw(timeline(measurement))
