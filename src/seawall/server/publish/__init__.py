"""Passes batches from connections to the log, and sends the acks back."""
