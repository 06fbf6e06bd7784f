"""Subjects and baselines of the figures: logs, nodes, pods, bare servers, child processes."""
