"""Kernels that receive from sockets and send acks: large frames, small batches of many connections."""
