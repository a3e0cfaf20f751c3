"""Codecs: encodings of activations in fewer bytes, on the CPU and on a GPU."""
