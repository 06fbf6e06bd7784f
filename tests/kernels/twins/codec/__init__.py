"""Twins of `kernels/codec`."""
