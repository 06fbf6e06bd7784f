"""Public simulators for tests: a disk, a clock and a network that fail on demand and replay from a seed."""
