"""The write-ahead log: epochs, the files that hold them, their writer and reader, and the lanes that stage batches."""
