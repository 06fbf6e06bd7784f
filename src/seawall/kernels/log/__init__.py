"""Kernels of the write path: epochs, the commit cycle, segments, flushing."""
