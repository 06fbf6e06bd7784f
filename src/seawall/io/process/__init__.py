"""This process and others: memory, clocks, locks, descriptors, forked roles, topology."""
