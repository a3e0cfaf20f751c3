"""Colours of EPMC's figures, by system or part."""

COLORS = {
    "CSR-cuSPARSE in series": "#7f8c8d",
    "EPMC": "#123c69",
    "CSR": "#7f8c8d",
    "COO": "#e0a458",
    "ELL": "#3f9b6c",
    "DIA": "#c7b3e5",
    "VPEncoding": "#123c69",
    "compression": "#123c69",
    "convolution": "#e0a458",
    "other layers": "#b4bbc0",
}
