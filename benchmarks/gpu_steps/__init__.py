"""Steps of plain PyTorch measured on the GPU at hand, for a data set of `experiments/validation`."""
