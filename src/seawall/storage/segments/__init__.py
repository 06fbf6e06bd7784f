"""Segments: the stored batches of one topic, their index and sidecars, recovery."""
