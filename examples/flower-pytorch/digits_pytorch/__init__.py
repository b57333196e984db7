"""Handwritten digits, recognised by a small network in PyTorch."""
