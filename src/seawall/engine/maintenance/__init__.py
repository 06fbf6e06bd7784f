"""Background work of a store: flushes to segments, checkpoints, retention, deletes.

Reading order: `maintenance`, `checkpoint_schedule`, `flushing`, `flush_thread`, `retention`.
"""
