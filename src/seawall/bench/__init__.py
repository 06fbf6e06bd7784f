"""Benchmark suites: measure Seawall, and the limits of the same machine in the same run."""
