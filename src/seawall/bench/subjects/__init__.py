"""Subjects and baselines of the figures: logs, nodes, pods, bare servers, peer processes."""
