"""A simulated machine: disk, clock, network, shared memory, and their faults."""
