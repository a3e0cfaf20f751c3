"""Colours of vDNN's figures, by system or part."""

COLORS = {
    "base(m)": "#b4bbc0",
    "base(p)": "#7f8c8d",
    "vDNN_all(m)": "#a8d5ba",
    "vDNN_all(p)": "#3f9b6c",
    "vDNN_conv(m)": "#c7b3e5",
    "vDNN_conv(p)": "#7a55b8",
    "vDNN_dyn": "#d98b2b",
    "weights": "#e0a458",
    "feature maps": "#3b82c4",
    "gradient maps": "#8fc1e3",
    "workspace": "#b4bbc0",
    "share": "#123c69",
    "forward": "#3b82c4",
    "backward": "#123c69",
    "offload": "#e0a458",
    "prefetch": "#8fc1e3",
}
