"""The write path: queue appends, group them, admit and number them, write them to the log, and sync.

Read in this order: `commit_queue`, `pending_batches`, `commit_cycle`, `log_writer`, `reservations`.
"""
