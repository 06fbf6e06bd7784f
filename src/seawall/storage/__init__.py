"""The files of a data directory: write-ahead log, segments and their indexes, control batches, snapshots, recovery."""
