"""Encoding and decoding: checksums, blocks of records, batch headers, frames, columns."""
