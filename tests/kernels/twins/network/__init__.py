"""Twins of `kernels/network`."""
