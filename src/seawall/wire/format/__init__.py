"""What both protocol versions and the disk share: records, batches, frames, fields, compression, Arrow."""
