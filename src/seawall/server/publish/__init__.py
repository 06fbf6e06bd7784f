"""Batches from connections into the log, and acks back."""
