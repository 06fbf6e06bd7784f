"""Background work of a store: flushes to segments, checkpoints, retention, deletes."""
