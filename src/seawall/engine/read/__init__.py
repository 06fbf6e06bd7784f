"""The read path: a read is planned under the lock of the store and executed without it."""
