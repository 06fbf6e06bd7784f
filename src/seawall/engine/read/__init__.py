"""The read path: plan a read under the lock of the store, execute it without the lock."""
