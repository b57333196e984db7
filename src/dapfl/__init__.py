"""Dap-FL: adaptive, private federated learning."""

__version__ = "0.1.0"
