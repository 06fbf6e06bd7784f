"""Segments: the files with the stored batches of a topic, their indexes and sidecars, and their recovery."""
