"""Admits batches: validates arrivals, deduplicates by client window, assigns positions, seqs and offsets."""
