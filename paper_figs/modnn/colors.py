"""Colours of moDNN's figures, by system or part."""

COLORS = {
    "ideal case": "#7f8c8d",
    "moDNN": "#123c69",
    "vDNN": "#3f9b6c",
    "vDNN+": "#d98b2b",
    "ideal case, naive accumulation": "#7f8c8d",
    "moDNN, naive accumulation": "#8fc1e3",
    "moDNN, 1 core": "#123c69",
    "moDNN, 20 cores": "#3b82c4",
    "lower bound": "#3b82c4",
    "lower bound, weights offloaded": "#8fc1e3",
    "sub-batch size selection": "#3b82c4",
    "offloading and prefetching": "#3f9b6c",
    "convolution algorithm selection": "#c7b3e5",
}
