"""Formats shared by both protocol versions and the disk: records, batches, frames, fields, compression, Arrow."""
