"""The write path: appends are queued, grouped, admitted, numbered, written to the log and synced.

The order to read: `commit_queue`, `pending_batches`, `commit_cycle`, `log_writer`, `reservations`.
"""
