"""Twins of `kernels/ordering`."""
