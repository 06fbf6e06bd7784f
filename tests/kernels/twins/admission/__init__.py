"""Twins of `kernels/admission`."""
