"""Which batches are new, and which numbers they get: client windows and the frontier."""
