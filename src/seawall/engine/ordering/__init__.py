"""Assigns positions to batches: in one process by itself, or by brokers and a sequencer over shared memory."""
