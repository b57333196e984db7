"""Handwritten digits, recognised by a linear model of scikit-learn. No PyTorch is needed."""
