"""Twins of `kernels/queues`."""
