"""Kernels of the write path: staging, the commit cycle, epochs of the write-ahead log, segments, flushing."""
