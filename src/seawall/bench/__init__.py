"""Benchmark suites: every figure beside the limit of the same machine, measured in the same run."""
