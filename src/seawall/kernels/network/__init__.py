"""Kernels that receive from sockets and answer: large frames, small batches of many connections."""
