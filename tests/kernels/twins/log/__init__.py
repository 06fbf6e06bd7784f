"""Twins of `kernels/log`."""
