"""Twins of `kernels/runtime`."""
