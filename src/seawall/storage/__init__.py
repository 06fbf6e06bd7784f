"""What lies on disk: the write-ahead log, segments and their index, control batches, snapshots, recovery."""
