"""Encodes and parses control batches: every change of state that is not an append."""
