"""Colours of Layrub's figures, by system or part."""

COLORS = {
    "Caffe": "#7f8c8d",
    "Layrub-intra": "#8fc1e3",
    "Layrub-inter": "#3b82c4",
    "Layrub-hybrid": "#123c69",
    "GeePS": "#c7b3e5",
    "TensorFlow": "#e0a458",
    "MXNet-memonger": "#3f9b6c",
    "vDNN(m)": "#a8d5ba",
    "vDNN(p)": "#d98b2b",
    "baseline": "#d1d5db",
    "parameters": "#e0a458",
    "activations_and_gradients": "#7f8c8d",
    "data gradient": "#3b82c4",
    "weight gradient": "#d98b2b",
    "bias gradient": "#3f9b6c",
}
