"""Commands that print records: `read`, `sub` and `watch`."""
